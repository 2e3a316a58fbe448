# Two images from one file:
#
#   docker build --target operator -t moorage-operator .
#   docker build --target runtime  -t moorage-runtime .
#
# Any Debian or Ubuntu with Python 3.11 or later (and its venv module) can be the base.
ARG BASE_IMAGE=python:3.11-slim-bookworm

# -- what both are built with: an environment of its own, so that nothing of it stays ----------------
FROM ${BASE_IMAGE} AS build
WORKDIR /src
RUN python3 -m venv /opt/tools && python3 -m venv --without-pip /opt/moorage
ENV PATH=/opt/moorage/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
COPY pyproject.toml constraints.txt README.md LICENSE CHANGELOG.md ./
COPY backends backends
COPY operator operator
COPY runtime runtime
COPY runtime/image/trim.py ./

# The arguments are for builds that reach packages in another way than the default index.
FROM build AS build-operator
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
RUN /opt/tools/bin/python -m pip --python /opt/moorage install -q -c constraints.txt '.[operator]' \
    && python3 trim.py operator /opt/moorage/lib/python3*/site-packages \
    && find /opt/moorage -name '__pycache__' -prune -exec rm -rf {} + \
    && python -m compileall -q --invalidation-mode checked-hash /opt/moorage/lib

FROM build AS build-runtime
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
RUN /opt/tools/bin/python -m pip --python /opt/moorage install -q -c constraints.txt '.[runtime,cli,kafka]' \
    && python3 trim.py runtime /opt/moorage/lib/python3*/site-packages \
    && find /opt/moorage -name '__pycache__' -prune -exec rm -rf {} + \
    && python -m compileall -q --invalidation-mode checked-hash /opt/moorage/lib

# -- the control plane: no Java, no Spark -----------------------------------------------------------
FROM ${BASE_IMAGE} AS operator
LABEL org.opencontainers.image.title="moorage-operator" \
      org.opencontainers.image.description="Runs stateful PySpark streaming jobs on Kubernetes" \
      org.opencontainers.image.licenses="Apache-2.0"
# Official images of Python bring these; others lack them.
RUN python3 -m pip uninstall -q -y setuptools wheel pip 2>/dev/null || true
COPY --from=build-operator /opt/moorage /opt/moorage
ENV PATH=/opt/moorage/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
WORKDIR /tmp
STOPSIGNAL SIGTERM
ENTRYPOINT ["python", "-m", "moorage_operator"]
# Last, so that a new version makes no other layer anew.
ARG VERSION=unknown
LABEL org.opencontainers.image.version="${VERSION}"

# -- jobs: driver, executors, state servers ---------------------------------------------------------
FROM ${BASE_IMAGE} AS runtime
LABEL org.opencontainers.image.title="moorage-runtime" \
      org.opencontainers.image.description="Driver, executors and state servers of Moorage's jobs" \
      org.opencontainers.image.licenses="Apache-2.0"
# Debian's Java, its modules compressed (129 MB become 58); ct.sym is for compilers. The archives of its own classes
# belong to the modules they were made of. The folder of manual pages is linked into, and slim images lack it.
RUN if ! command -v java >/dev/null; then \
      mkdir -p /usr/share/man/man1 \
      && apt-get update -q \
      && apt-get install -q -y --no-install-recommends openjdk-17-jre-headless openjdk-17-jdk-headless \
      && home="$(dirname "$(dirname "$(readlink -f "$(command -v java)")")")" \
      && jlink --compress=2 --module-path "$home/jmods" --add-modules ALL-MODULE-PATH --output /tmp/java \
      && mv /tmp/java/lib/modules "$home/lib/modules" \
      && rm -r /tmp/java "$home/lib/ct.sym" \
      && apt-get purge -q -y openjdk-17-jdk-headless \
      && java -Xshare:dump && java -XX:-UseCompressedOops -Xshare:dump \
      && rm -rf /var/lib/apt/lists/* /var/cache/apt/*; fi \
    && ln -s "$(dirname "$(dirname "$(readlink -f "$(command -v java)")")")" /opt/java
RUN if ! { command -v tini && command -v ps; } >/dev/null; then \
      apt-get update -q \
      && apt-get install -q -y --no-install-recommends procps tini \
      && rm -rf /var/lib/apt/lists/* /var/cache/apt/*; fi \
    && (getent passwd 185 || useradd --system --uid 185 --gid root --home-dir /opt/spark spark) \
    && mkdir -p /opt/work /var/lib/moorage \
    && chown 185:root /opt/work /var/lib/moorage && chmod g+w /opt/work /var/lib/moorage /etc/passwd \
    && { python3 -m pip uninstall -q -y setuptools wheel pip 2>/dev/null || true; }
COPY --from=build-runtime /opt/moorage /opt/moorage
RUN ln -s /opt/moorage/lib/python3*/site-packages/pyspark /opt/spark
COPY runtime/image/entrypoint.sh runtime/image/outlive.sh runtime/image/decom.sh /opt/
ENV PATH=/opt/moorage/bin:$PATH JAVA_HOME=/opt/java SPARK_HOME=/opt/spark \
    PYSPARK_PYTHON=/opt/moorage/bin/python PYSPARK_DRIVER_PYTHON=/opt/moorage/bin/python \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# Drivers and executors start in two thirds of the time with an archive of Spark's classes.
RUN python -m moorage.class_archive
USER 185
WORKDIR /opt/work
STOPSIGNAL SIGTERM
ENTRYPOINT ["/opt/entrypoint.sh"]
# Last, so that a new version makes no other layer anew.
ARG VERSION=unknown
LABEL org.opencontainers.image.version="${VERSION}"
