#!/bin/sh
# Makes .venv ready: an environment, every package at the version in constraints.txt, and a Java
# runtime if there is none. `make` calls it once and again when pyproject.toml or constraints.txt
# change. It never removes an environment that works.
#
# PYTHON=/path/to/python3.11 chooses the interpreter; VENV=dir the place (default .venv);
# SPARK=4.1 another minor version of pyspark than the one in constraints.txt.
set -eu

VENV="${VENV:-.venv}"
CONSTRAINTS=constraints.txt
EXTRAS="operator,runtime,cli,dev"

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

# Runs a command as root: as we are, or through sudo where that needs no password or can ask.
as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null 2>&1; then
        sudo "$@"
    else
        return 127
    fi
}

# apt_install WHY PACKAGE...: installs the first of the packages that this Debian has.
apt_install() {
    why=$1
    shift
    command -v apt-get >/dev/null 2>&1 || die "$why is missing and this is not Debian or Ubuntu;" \
        "install it (one of: $*) by the means of this system, then run make again"
    if [ "$(id -u)" != 0 ] && ! command -v sudo >/dev/null 2>&1; then
        die "$why is missing, and neither root nor sudo is at hand to install it;" \
            "have an administrator run: apt-get install $1"
    fi
    say "installing $why with apt-get (once)"
    as_root apt-get update -qq || say "apt-get update failed; going on with the lists that are here"
    for package in "$@"; do
        if apt-cache show "$package" >/dev/null 2>&1; then
            as_root env DEBIAN_FRONTEND=noninteractive \
                apt-get install -y -qq --no-install-recommends "$package" >/dev/null ||
                die "apt-get could not install $package; its message is above"
            return 0
        fi
    done
    die "apt-get knows none of: $*; install $why by hand, then run make again"
}

find_python() {
    for candidate in ${PYTHON:-} python3.11 python3.12 python3.13 python3; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return 0
        fi
    done
    return 1
}

# Debian splits the part of venv that carries pip (ensurepip) into python3.X-venv.
make_venv() {
    python=$1
    if [ -x "$VENV/bin/python" ] && "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
        return 0
    fi
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        apt_install "the venv module of python $version" "python$version-venv" python3-venv
    fi
    say "creating $VENV with $python"
    "$python" -m venv "$VENV" || die "could not create $VENV; the message of venv is above"
}

# The same constraints but for pyspark; pip and uv read them from a file.
constrain_spark() {
    CONSTRAINTS="$VENV/constraints.txt"
    sed "s/^pyspark==.*/pyspark==$1.*/" constraints.txt >"$CONSTRAINTS"
}

# uv is the fast road. pip is the sure one: it also follows a pip.conf (mirrors, wheel directories).
install_packages() {
    pip="$VENV/bin/python -m pip --disable-pip-version-check"
    say "installing packages (the first time about 600 MB, most of it pyspark)"
    if $pip install -q -c "$CONSTRAINTS" uv &&
        VIRTUAL_ENV="$VENV" "$VENV/bin/uv" pip install -q -c "$CONSTRAINTS" -e ".[$EXTRAS]"; then
        return 0
    fi
    say "uv did not succeed; trying again with pip"
    $pip install -q -c "$CONSTRAINTS" -e ".[$EXTRAS]" ||
        die "the packages could not be installed; is a package index reachable from here?"
}

# Spark 4 runs on Java 17 and later.
ensure_java() {
    java="${JAVA_HOME:+$JAVA_HOME/bin/}java"
    if ! command -v "$java" >/dev/null 2>&1; then
        [ -z "${JAVA_HOME:-}" ] || die "JAVA_HOME=$JAVA_HOME holds no bin/java; correct or unset it"
        # The package links manual pages; slim images have no such directory and dpkg would fail.
        [ -d /usr/share/man/man1 ] || as_root mkdir -p /usr/share/man/man1 || true
        apt_install "a Java runtime" openjdk-17-jre-headless openjdk-21-jre-headless
        java=java
    fi
    major=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
    [ "${major:-0}" -ge 17 ] || die "Spark needs Java 17 or later, found:" \
        "$("$java" -version 2>&1 | head -n 1) at $(command -v "$java");" \
        "install openjdk-17-jre-headless or point JAVA_HOME at one"
}

# Spark's JVMs start in two thirds of the time with it, in tests above all; they do without as well.
archive_classes() {
    say "writing down the Java classes that Spark loads (half a minute)"
    "$VENV/bin/python" -m moorage.class_archive ||
        say "that failed, as said above; Spark will start as it always does"
}

cd "$(dirname "$0")/.."
python=$(find_python) || die "Python 3.11 or later is needed and was not found;" \
    "install python3.11 or run: make PYTHON=/path/to/python3.11"
ensure_java
make_venv "$python"
[ -z "${SPARK:-}" ] || constrain_spark "$SPARK"
install_packages
archive_classes
say "ready"
