"""Takes out of an image what nothing in it uses: `trim.py operator|runtime SITE_PACKAGES`.

Each cut is a path below site-packages and the reason; one that finds nothing ends the build, so
that a new release of a package cannot bring something back unseen. Needs the standard library only.
"""

import platform
import re
import shutil
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple


class Cut(NamedTuple):
    """Paths (globs; those that match `keep` stay) and why nobody misses them."""

    paths: str
    reason: str
    keep: str = ""


_CLOUD = Cut(
    "botocore/data/*/",
    "descriptions of all services; S3 is called, and STS and SSO for credentials",
    keep=r"s3|sts|sso|sso-oidc|signin",
)
CUTS = {
    "operator": (
        _CLOUD,
        Cut("kubernetes/client/api/*", "typed calls; the operator makes its own requests"),
        Cut("kubernetes/client/models/*", "typed objects; the operator has its own"),
        Cut("kubernetes/aio/client/api/*", "typed calls; the operator makes its own requests"),
        Cut("kubernetes/aio/client/models/*", "typed objects; the operator has its own"),
    ),
    "runtime": (
        _CLOUD,
        Cut("pyarrow/libarrow_flight*", "Arrow's RPC"),
        Cut("pyarrow/_flight*", "Arrow's RPC"),
        Cut("pyarrow/include", "for compiling against Arrow"),
        Cut("pyarrow/src", "for compiling against Arrow"),
        Cut("pyarrow/tests", "its own tests"),
        Cut("pandas/tests", "its own tests"),
        Cut("numpy/**/tests", "its own tests"),
    ),
}
NATIVE_JARS = ("pyspark/jars/rocksdbjni-*.jar", "pyspark/jars/zstd-jni-*.jar")
"""Libraries with a native part for every platform, of which an image has one."""

_NATIVE = re.compile(r"\.(so|dll|dylib|jnilib)$")
_OWN = {
    "x86_64": re.compile(r"librocksdbjni-linux64\.so$|^linux/amd64/"),
    "aarch64": re.compile(r"librocksdbjni-linux-aarch64\.so$|^linux/aarch64/"),
}


def trim(target: str, root: Path, machine: str) -> int:
    """Cut what `target` does not use; how many bytes that were.

    Raises LookupError: a cut found nothing, or a jar has no native part for `machine`.
    """
    gone = 0
    for cut in CUTS[target]:
        found = [p for p in root.glob(cut.paths) if not re.fullmatch(cut.keep or r"\b\B", p.name)]
        found = [path for path in found if path.is_dir() or not cut.paths.endswith("/")]
        if not found:
            raise LookupError(f"nothing to cut, see {Path(__file__).name}: {cut.paths}")
        for path in found:
            gone += _size(path)
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    if target == "runtime":
        for pattern in NATIVE_JARS:
            for jar in root.glob(pattern):
                gone += _thin(jar, _OWN[machine])
    return gone


def _thin(jar: Path, own: re.Pattern[str]) -> int:
    before, thinner, kept = jar.stat().st_size, jar.with_suffix(".thin"), 0
    with zipfile.ZipFile(jar) as source, zipfile.ZipFile(thinner, "w") as to:
        for entry in source.infolist():
            if _NATIVE.search(entry.filename):
                if not own.search(entry.filename):
                    continue
                kept += 1
            to.writestr(entry, source.read(entry))
    if not kept:
        thinner.unlink()
        raise LookupError(f"has no native part for this machine: {jar.name}")
    thinner.replace(jar)
    return before - jar.stat().st_size


def _size(path: Path) -> int:
    if not path.is_dir():
        return path.lstat().st_size
    return sum(one.lstat().st_size for one in path.rglob("*") if one.is_file())


if __name__ == "__main__":
    _, what, where = sys.argv
    bytes_cut = trim(what, Path(where), platform.machine())
    sys.stdout.write(f"trimmed {bytes_cut >> 20} MiB from {where}\n")
