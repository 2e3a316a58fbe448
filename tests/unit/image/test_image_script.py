"""`scripts/image.sh` says how large images are and refuses what grew; its builder is a stand-in."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "image.sh"
BUILDER = """case $1 in
build | bud) ;;
create | from) echo box-of-$2 ;;
export) tar -cf - -C $FILES . ;;
mount) echo $FILES ;;
unshare) shift && exec "$@" ;;
rm) echo "removed $2" >>$FILES.log ;;
*) echo "unknown: $*" >&2 && exit 1 ;;
esac"""


@pytest.fixture
def image(tmp_path):
    """Build with a stand-in; its status and what was said. Images have so many bytes, if told."""
    files = tmp_path / "files"
    (files / "usr").mkdir(parents=True)
    (files / "usr/large").write_bytes(bytes(2_000_000))
    (files / "usr/small").write_bytes(bytes(400_001))
    tools = tmp_path / "tools"
    tools.mkdir()

    def run(builder="docker", weight=None, text=BUILDER, uid=0, **variables):
        stand_ins = {builder: text, "id": f"echo {uid}"}
        if weight is not None:
            stand_ins["wc"] = f"cat >/dev/null; echo {weight}"
        for name, script in stand_ins.items():
            (tools / name).write_text(f"#!/bin/sh\n{script}\n")
            (tools / name).chmod(0o755)
        done = subprocess.run(
            [str(SCRIPT), "t"],
            env={
                "PATH": f"{tools}:{os.environ['PATH']}",
                "FILES": str(files),
                "BUILDER": builder,
                **variables,
            },
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.mark.parametrize(
    ("builder", "uid"), [("docker", 0), ("podman", 1000), ("buildah", 0), ("buildah", 1000)]
)
def test_an_image_is_told_with_the_bytes_of_its_files_and_nothing_is_left(
    image, builder, uid, tmp_path
):
    status, out, err = image(builder, uid=uid)
    assert (status, err) == (0, "")
    assert "image: moorage-operator:t: 3 MB unpacked" in out
    assert "image: moorage-runtime:t: 3 MB unpacked" in out
    assert out.splitlines()[-1].startswith("image: ready:")
    removed = (tmp_path / "files.log").read_text().splitlines()
    assert removed == ["removed box-of-moorage-operator:t", "removed box-of-moorage-runtime:t"]


@pytest.mark.parametrize(
    ("megabytes", "large"),
    [(300, ()), (301, ("operator",)), (1200, ("operator",)), (1201, ("operator", "runtime"))],
)
def test_what_is_larger_than_was_promised_is_refused_and_both_are_named(image, megabytes, large):
    status, out, err = image(weight=megabytes * 1_000_000)
    assert status == (1 if large else 0)
    for name, most in (("operator", 300), ("runtime", 1200)):
        told = f"moorage-{name}:t: {megabytes} MB unpacked, {most} are allowed"
        assert (told in err) == (name in large)
    assert ("ready" in out) == (not large)


def test_a_byte_above_is_above(image):
    assert image(weight=300_000_000)[0] == 0
    status, _, err = image(weight=300_000_001)
    assert (status, "OPERATOR_MAX_MB=301 allows it" in err) == (1, True)


def test_more_is_allowed_by_who_says_so(image):
    status, out, _ = image(weight=1_300_000_000, OPERATOR_MAX_MB="1300", RUNTIME_MAX_MB="1300")
    assert (status, "ready" in out) == (0, True)
    status, _, err = image(weight=1_300_000_000, OPERATOR_MAX_MB="1300", RUNTIME_MAX_MB="1299")
    assert (status, "RUNTIME_MAX_MB=1300 allows it" in err) == (1, True)
    status, _, err = image(RUNTIME_MAX_MB="1.5 GB")
    assert (status, "write whole numbers of MB" in err) == (1, True)


def test_an_image_that_cannot_be_looked_into_is_not_taken_for_a_small_one(image):
    broken = BUILDER.replace("tar -cf - -C $FILES .", "echo no such container >&2; exit 1")
    status, out, err = image(text=broken)
    assert (status, "ready" in out) == (1, False)
    assert "moorage-operator:t could not be unpacked" in err
