"""Finds the Java that Spark is to run on, or says how to get one.

A laptop may have it where Spark does not look: beside others in `/usr/lib/jvm`, in the home of
SDKMAN or of install-jdk, in macOS's folder. It must not start one: a release says in a file of its
own what it is.
"""

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from moorage_state.errors import UserError

OLDEST = 17
_HOW = (
    f"install Java {OLDEST} or later (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; "
    "macOS: brew install openjdk@17), or set JAVA_HOME to one"
)
# Below the root, then below the user's home.
_PLACES = (
    "usr/lib/jvm/*",
    "usr/local/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
    "opt/homebrew/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
    "Library/Java/JavaVirtualMachines/*/Contents/Home",
)
_OWN_PLACES = (".sdkman/candidates/java/*", ".jdk/*")


def java_text(environ: Mapping[str, str]) -> str:
    """The Java that Spark will run on, for people: its version and its home.

    Raises UserError: see `java_home`.
    """
    given = environ.get("JAVA_HOME")
    home = java_home(environ) or (Path(given) if given else _on_path(environ))
    return f"{(home and _release(home)) or 'a version that it does not say'} at {home}"


def java_home(environ: Mapping[str, str], root: Path = Path("/")) -> Path | None:
    """The home of a Java for Spark; None where the one that Spark finds by itself will do.

    Raises UserError: there is none that is new enough, or JAVA_HOME holds none.
    """
    if given := environ.get("JAVA_HOME"):
        if not (Path(given) / "bin" / "java").is_file():
            raise UserError(f"JAVA_HOME holds no bin/java: {given}; correct it or unset it")
        _refuse_old(Path(given), "JAVA_HOME")
        return None
    known = _on_path(environ)
    if known and (_version(known) or OLDEST) >= OLDEST:
        return None
    homes = {home: _version(home) or 0 for home in _homes(environ, root)}
    best = max(homes, key=lambda home: (homes[home] == OLDEST, homes[home]), default=None)
    if best is not None and homes[best] >= OLDEST:
        return best
    if known:
        _refuse_old(known, "the java on PATH")
    raise UserError(f"Spark needs Java, and there is none on PATH; {_HOW}")


def _on_path(environ: Mapping[str, str]) -> Path | None:
    on_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    return Path(on_path).resolve().parents[1] if on_path else None


def _refuse_old(home: Path, what: str) -> None:
    version = _version(home)
    if version is not None and version < OLDEST:
        raise UserError(f"{what} is too old for Spark: version={version} home={home}; {_HOW}")


def _homes(environ: Mapping[str, str], root: Path) -> Iterator[Path]:
    places = [(root, place) for place in _PLACES]
    if own := environ.get("HOME"):
        places += [(Path(own), place) for place in _OWN_PLACES]
    for folder, place in places:
        for home in sorted(folder.glob(place)):
            if os.access(home / "bin" / "java", os.X_OK):
                yield home


def _version(home: Path) -> int | None:
    """The major version that a release says it is; None where it does not say."""
    found = re.match(r"(?:1\.)?(\d+)", _release(home))
    return int(found[1]) if found else None


def _release(home: Path) -> str:
    """The version that a release says it is; empty where it does not say."""
    try:
        release = (home / "release").read_text(errors="replace")
    except OSError:
        return ""
    found = re.search(r'^JAVA_VERSION="([^"]+)"', release, re.MULTILINE)
    return found[1] if found else ""
