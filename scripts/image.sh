#!/bin/sh
# Builds both images with the tool that is there: docker, podman or buildah.
#
#   scripts/image.sh [TAG]              moorage-operator:TAG and moorage-runtime:TAG; TAG is the version
#   BUILDER=podman BASE_IMAGE=... ARGS='--network=host' scripts/image.sh
#
# BUILDER chooses the tool, BASE_IMAGE another Debian with Python 3.11 or later, ARGS more options of it.
# Fails where an image has more than 300 MB (operator) or 1,200 MB (runtime) of files when it is
# unpacked; OPERATOR_MAX_MB and RUNTIME_MAX_MB allow more.
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

operator_max=${OPERATOR_MAX_MB:-300}
runtime_max=${RUNTIME_MAX_MB:-1200}
case $operator_max$runtime_max in
    *[!0-9]*) die "OPERATOR_MAX_MB=$operator_max RUNTIME_MAX_MB=$runtime_max: write whole numbers of MB" ;;
esac

files_of() {
    # All files of a container that was made of an image, as a tar.
    if [ "$builder" != buildah ]; then
        $builder export "$1"
    elif [ "$(id -u)" -eq 0 ]; then
        tar -cf - -C "$(buildah mount "$1")" .
    else
        # shellcheck disable=SC2016 - a shell in the user's own name space has them
        buildah unshare sh -c 'tar -cf - -C "$(buildah mount "$1")" .' sh "$1"
    fi
}

weigh() {
    # What counts is what a node keeps, whatever a registry packs it into.
    name=$1 most=$2 variable=$3
    case $builder in
        buildah) box=$(buildah from "$name") ;;
        *) box=$($builder create "$name") ;;
    esac
    bytes=$(files_of "$box" | tar -xOf - | wc -c)
    $builder rm "$box" >/dev/null
    [ "$bytes" -gt 0 ] || die "$name could not be unpacked; the message of $builder is above"
    # Up to the next one: what is above the limit by a byte is above it.
    mb=$(((bytes + 999999) / 1000000))
    say "$name: $mb MB unpacked"
    [ "$mb" -le "$most" ] && return
    large="$large $name: $mb MB unpacked, $most are allowed: $variable=$mb allows it, if it is to be so;"
}

large=
for target in operator runtime; do
    say "building moorage-$target:$tag with $builder"
    # shellcheck disable=SC2086 - ARGS and build are lists of words
    $build ${ARGS:-} ${BASE_IMAGE:+--build-arg "BASE_IMAGE=$BASE_IMAGE"} \
        --build-arg "VERSION=$version" --target "$target" -t "moorage-$target:$tag" . ||
        die "moorage-$target could not be built; the message of $builder is above"
done
weigh "moorage-operator:$tag" "$operator_max" OPERATOR_MAX_MB
weigh "moorage-runtime:$tag" "$runtime_max" RUNTIME_MAX_MB
[ -z "$large" ] || die "too large:$large take a smaller BASE_IMAGE (its packages and caches count), or see what came in"
say "ready: moorage-operator:$tag moorage-runtime:$tag"
