"""Which slice of the last level is compacted, when, and what RocksDB will read for it. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from moorage_state.rocks.sliced import LAST_LEVEL, LevelFile

SLICE_FILES = 4
SECOND_LEVEL_BYTES = 32 << 20
SECOND_LEVEL_SHARE = 8
"""The second level is brought down when it has more than both, bytes and that part of the last."""


class Slice(NamedTuple):
    """What is compacted: from key to key, None for as far as they go; and the files to be read.

    `anew` where the last level has no file yet.
    """

    first: bytes | None
    last: bytes | None
    inputs: list[LevelFile]
    anew: bool = False


def is_due(files: Sequence[LevelFile]) -> bool:
    """Whether the second level is too large."""
    second = sum(file.size for file in files if file.level == LAST_LEVEL - 1)
    last = sum(file.size for file in files if file.level == LAST_LEVEL)
    return second > max(SECOND_LEVEL_BYTES, last // SECOND_LEVEL_SHARE)


def chosen_slice(files: Sequence[LevelFile]) -> Slice:
    """Files of the last level, side by side, that most of the second level lies over.

    The first level must be empty: what comes from there may lie anywhere.
    """
    second = sorted((f for f in files if f.level < LAST_LEVEL), key=lambda f: f.first)
    last = sorted((f for f in files if f.level == LAST_LEVEL), key=lambda f: f.first)
    if not last:
        return Slice(None, None, list(second), anew=True)
    windows = range(max(1, len(last) - SLICE_FILES + 1))
    first, end = max(
        (_window(last, at) for at in windows),
        key=lambda ends: sum(file.size for file in _within(second, *ends)),
    )
    # RocksDB takes whole files, and with one that ends at a key all that begin there.
    above = _closed(second, first, end)
    if above:
        first = first and min(first, above[0].first)
        end = end and max(end, above[-1].last)
    return Slice(first, end, [*above, *_closed(last, first, end)])


def _window(last: Sequence[LevelFile], at: int) -> tuple[bytes | None, bytes | None]:
    """The bounds of a slice; at either end of the level there are none."""
    window = last[at : at + SLICE_FILES]
    first = None if at == 0 else window[0].first
    return first, None if at + SLICE_FILES >= len(last) else window[-1].last


def _within(files: Sequence[LevelFile], first: bytes | None, last: bytes | None) -> list[LevelFile]:
    return [
        file
        for file in files
        if (last is None or file.first <= last) and (first is None or file.last >= first)
    ]


def _closed(files: Sequence[LevelFile], first: bytes | None, last: bytes | None) -> list[LevelFile]:
    """The files of one level within the bounds, and those that share a key with one of them."""
    found = _within(files, first, last)
    while found:
        more = _within(files, first and found[0].first, last and found[-1].last)
        if len(more) == len(found):
            break
        found = more
    return found
