#!/bin/sh
# The entry point of the runtime image.
#
#   executor            what Spark's Kubernetes scheduler starts: everything comes in SPARK_* variables
#   anything else       is run as it is: the driver (python -m moorage.cluster), a shell, moorage ...
#
# The variables are those of Spark's own images, so that pod templates written for them work here.
set -eu

# What crashes holds tokens and keys.
ulimit -c 0

# A user id that the image does not know (as OpenShift gives) gets a name, which Java asks for.
if ! getent passwd "$(id -u)" >/dev/null 2>&1 && [ -w /etc/passwd ]; then
    echo "spark:x:$(id -u):0:spark:${SPARK_HOME:-/opt/spark}:/bin/false" >>/etc/passwd
fi

[ "${1:-}" = executor ] || exec tini -s -- "$@"

SPARK_HOME=${SPARK_HOME:-/opt/spark}
# The driver's order: an archive of classes is of use where the class path begins as it did there.
classpath="${SPARK_CLASSPATH:-}:$(echo "$SPARK_HOME"/jars/slf4j-api-*.jar):$SPARK_HOME/jars/*"
[ -z "${SPARK_EXTRA_CLASSPATH:-}" ] || classpath="$SPARK_EXTRA_CLASSPATH:$classpath"
[ -z "${HADOOP_CONF_DIR:-}" ] || classpath="$HADOOP_CONF_DIR:$classpath"
# Spark always mounts settings of its own there, spark.properties; before the jars, where their
# configuration is looked for, stands only a directory with something else in it.
if [ -n "${SPARK_CONF_DIR:-}" ]; then
    if ls "$SPARK_CONF_DIR" 2>/dev/null | grep -qv '^spark\.'; then
        classpath="$SPARK_CONF_DIR:$classpath"
    else
        classpath="$classpath:$SPARK_CONF_DIR"
    fi
fi
classpath="$classpath:${PWD}"

# SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1 ...: one option each, blanks and all.
set --
number=0
while eval "[ \"\${SPARK_JAVA_OPT_$number+set}\" = set ]"; do
    eval "set -- \"\$@\" \"\$SPARK_JAVA_OPT_$number\""
    number=$((number + 1))
done

exec tini -s -- "$(dirname "$0")/outlive.sh" "${JAVA_HOME:+$JAVA_HOME/bin/}java" "$@" \
    "-Xms${SPARK_EXECUTOR_MEMORY:?}" "-Xmx$SPARK_EXECUTOR_MEMORY" \
    -cp "$classpath" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "${SPARK_DRIVER_URL:?}" \
    --executor-id "${SPARK_EXECUTOR_ID:?}" \
    --cores "${SPARK_EXECUTOR_CORES:?}" \
    --app-id "${SPARK_APPLICATION_ID:?}" \
    --hostname "${SPARK_EXECUTOR_POD_IP:?}" \
    --resourceProfileId "${SPARK_RESOURCE_PROFILE_ID:-0}" \
    --podName "${SPARK_EXECUTOR_POD_NAME:-}"
