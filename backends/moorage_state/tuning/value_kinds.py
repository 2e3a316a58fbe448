"""Texts that people give as values, each kind with what is allowed said in words. Pure."""

import re
from collections.abc import Callable
from typing import Any

_UNITS = {
    "": 1,
    "b": 1,
    "bytes": 1,
    **dict.fromkeys(("k", "kb", "kib", "kibibytes"), 1 << 10),
    **dict.fromkeys(("m", "mb", "mib", "mebibytes"), 1 << 20),
    **dict.fromkeys(("g", "gb", "gib", "gibibytes"), 1 << 30),
    **dict.fromkeys(("t", "tb", "tib", "tebibytes"), 1 << 40),
}
_TIMES = {
    **dict.fromkeys(("", "ms", "milli", "millis", "millisecond", "milliseconds"), 0.001),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86_400.0),
}
_LONGEST = 366 * 86_400.0
_SIZE = re.compile(r"(\d{1,18})\s*([a-z]*)")
_MOST = 1 << 50
_COMPRESSIONS = {
    "NO_COMPRESSION": "none",
    "NONE": "none",
    "SNAPPY_COMPRESSION": "snappy",
    "SNAPPY": "snappy",
    "LZ4_COMPRESSION": "lz4",
    "LZ4": "lz4",
    "LZ4HC_COMPRESSION": "lz4hc",
    "LZ4HC": "lz4hc",
    "ZSTD_COMPRESSION": "zstd",
    "ZSTD": "zstd",
    "ZLIB_COMPRESSION": "zlib",
    "ZLIB": "zlib",
    "BZLIB2_COMPRESSION": "bz2",
    "BZLIB2": "bz2",
}
_LEVELS = 7


class Refused(ValueError):
    """A text that is no such value; says what would be."""


def size(least: int = 1) -> Callable[[str], int]:
    """Bytes, with or without a unit: `64mb`, `64 mb`, `67108864`."""

    def parse(text: str) -> int:
        match = _SIZE.fullmatch(text.strip().lower())
        unit = _UNITS.get(match[2]) if match else None
        if match is None or unit is None:
            raise Refused("a size like 64mb, 512 kb, 1g or a number of bytes")
        number = int(match[1]) * unit
        if not least <= number <= _MOST:
            raise Refused(f"a size of at least {least} bytes")
        return number

    return parse


def duration(text: str) -> float:
    """Seconds, with or without a unit: `10 min`, `600s`; a number alone is of milliseconds."""
    match = _SIZE.fullmatch(text.strip().lower())
    unit = _TIMES.get(match[2]) if match else None
    if match is None or unit is None or int(match[1]) * unit > _LONGEST:
        raise Refused("a time like 10 min, 600 s, 500 ms or 1 h")
    return int(match[1]) * unit


def whole(least: int, most: int) -> Callable[[str], int]:
    """A whole number."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"[+-]?\d{1,12}", text.strip()) or not least <= int(text) <= most:
            raise Refused(f"a whole number from {least} to {most}")
        return int(text)

    return parse


def ratio(text: str) -> float:
    """A share above 0 and below 1."""
    if not re.fullmatch(r"0?\.\d{1,9}", text.strip()) or not 0 < float(text) < 1:
        raise Refused("a share above 0 and below 1, like 0.5")
    return float(text)


def boolean(text: str) -> bool:
    """`true` or `false`."""
    known = {"true": True, "false": False}
    if text.strip().lower() not in known:
        raise Refused("true or false")
    return known[text.strip().lower()]


def choice(**known: Any) -> Callable[[str], Any]:
    """One of some words, in any case."""

    def parse(text: str) -> Any:
        word = text.strip().upper()
        if word not in known:
            raise Refused(f"one of {', '.join(known)}")
        return known[word]

    return parse


storage = choice(FILESYSTEM="filesystem", JOBMANAGER="driver", DRIVER="driver")


def directory(text: str) -> str:
    """An absolute path of this machine, or a file:// URL of one."""
    path = text.strip().removeprefix("file://")
    if not path.startswith("/") or "," in path or ":" in path or "\0" in path:
        raise Refused("one absolute path, like /mnt/state")
    return path


def compressions(text: str) -> tuple[str, ...]:
    """Names by level, with `;` or `,` between them."""
    words = [word.strip().upper() for word in re.split(r"[;,]", text) if word.strip()]
    if not words or len(words) > _LEVELS or any(word not in _COMPRESSIONS for word in words):
        names = ", ".join(name for name in _COMPRESSIONS if name.endswith("_COMPRESSION"))
        raise Refused(f"for each of up to {_LEVELS} levels one of {names}")
    return tuple(_COMPRESSIONS[word] for word in words)
