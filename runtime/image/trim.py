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
        Cut(
            "pyarrow/libarrow_python*",
            "copies, for compiling against Arrow; the names with one number are loaded",
            keep=r"libarrow_python(_parquet_encryption)?\.so\.\d+",
        ),
        Cut("pyarrow/tests", "its own tests"),
        Cut("pandas/tests", "its own tests"),
        Cut("numpy/**/tests", "its own tests"),
        Cut("pyspark/jars/connect-repl", "Scala shell and JDBC of Connect, in no other class path"),
    ),
}
NATIVE_JARS = ("rocksdbjni-*.jar", "zstd-jni-*.jar", "lz4-java-*.jar", "snappy-java-*.jar")
"""Libraries with a native part for every platform, of which an image has one."""
PLATFORM_JARS = "netty-*.Final-*.jar"
"""Native parts that are a jar for each platform."""

_NATIVE = re.compile(r"\.(so|dll|dylib|jnilib|a)$")
_OWN = {
    "x86_64": re.compile(r"librocksdbjni-linux64\.so$|(^|/)linux/(amd64|x86_64)/", re.IGNORECASE),
    "aarch64": re.compile(r"librocksdbjni-linux-aarch64\.so$|(^|/)linux/aarch64/", re.IGNORECASE),
}
_OWN_JARS = {"x86_64": "-linux-x86_64.jar", "aarch64": "-linux-aarch_64.jar"}


def trim(target: str, root: Path, machine: str) -> int:
    """Cut what `target` does not use; how many bytes that were.

    Raises LookupError: a cut found nothing, or there is no native part for `machine`.
    """
    gone = sum(apply(cut, root) for cut in CUTS[target])
    if target == "runtime":
        jars = root / "pyspark/jars"
        gone += keep_own(jars, machine)
        gone += sum(_thin(jar, _OWN[machine]) for name in NATIVE_JARS for jar in _found(jars, name))
    return gone


def apply(cut: Cut, root: Path) -> int:
    """Remove what one cut names; how many bytes that were."""
    return _remove(_found(root, cut.paths, cut.keep))


def keep_own(jars: Path, machine: str) -> int:
    """Remove the jars for other platforms than `machine`; how many bytes that were."""
    each = _found(jars, PLATFORM_JARS)
    others = [jar for jar in each if not jar.name.endswith(_OWN_JARS[machine])]
    if len(others) == len(each):
        raise LookupError(f"there is no jar for this machine: {PLATFORM_JARS}")
    return _remove(others)


def _found(root: Path, paths: str, keep: str = "") -> list[Path]:
    found = [path for path in root.glob(paths) if not re.fullmatch(keep or r"\b\B", path.name)]
    found = [path for path in found if path.is_dir() or not paths.endswith("/")]
    if not found:
        raise LookupError(f"nothing to cut, see {Path(__file__).name}: {paths}")
    return found


def _remove(paths: list[Path]) -> int:
    gone = sum(map(_size, paths))
    for path in paths:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
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
