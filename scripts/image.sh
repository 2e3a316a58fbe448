#!/bin/sh
# Builds both images with the tool that is there: docker, podman or buildah.
#
#   scripts/image.sh [TAG]              moorage-operator:TAG and moorage-runtime:TAG; TAG is the version
#   BUILDER=podman BASE_IMAGE=... ARGS='--network=host' scripts/image.sh
#
# BUILDER chooses the tool, BASE_IMAGE another Debian with Python 3.11 or later, ARGS more options of it.
set -eu

say() { printf 'image: %s\n' "$*"; }
die() { printf 'image: %s\n' "$*" >&2; exit 1; }

case ${1:-} in
    -h | --help) sed -n 's/^# \{0,1\}//p' "$0" | sed 1d && exit 0 ;;
    *[!A-Za-z0-9_.-]* | [.-]*) die "TAG=$1 is no tag of an image; write letters, digits, '_', '.', '-'" ;;
esac

cd "$(dirname "$0")/.."
version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' runtime/moorage/__init__.py)
tag=${1:-$version}

builder=${BUILDER:-}
if [ -z "$builder" ]; then
    for tool in docker podman buildah; do
        if command -v "$tool" >/dev/null 2>&1; then builder=$tool && break; fi
    done
fi
case $builder in
    docker | podman) build="$builder build" ;;
    buildah) build="buildah bud --layers" ;;
    "") die "docker, podman or buildah is needed and none was found" ;;
    *) die "BUILDER=$builder is none of docker, podman, buildah" ;;
esac

for target in operator runtime; do
    say "building moorage-$target:$tag with $builder"
    # shellcheck disable=SC2086 - ARGS and build are lists of words
    $build ${ARGS:-} ${BASE_IMAGE:+--build-arg "BASE_IMAGE=$BASE_IMAGE"} \
        --build-arg "VERSION=$version" --target "$target" -t "moorage-$target:$tag" . ||
        die "moorage-$target could not be built; the message of $builder is above"
done
say "ready: moorage-operator:$tag moorage-runtime:$tag"
