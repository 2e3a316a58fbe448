"""Which slice of the last level is compacted, when, and what RocksDB will read for it. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from moorage_state.rocks.sliced import LAST_LEVEL, LevelFile

SLICE_FILES = 4
SECOND_LEVEL_BYTES = 32 << 20
SECOND_LEVEL_SHARE = 8
"""The second level is brought down when it has more than both, bytes and that part of the last."""

CACHE_SHARE = 3
"""But at that part of what the database may have here at the latest: none of it can go."""


Window = tuple[bytes | None, bytes | None]
"""From key to key, None for as far as they go."""


class Slice(NamedTuple):
    """What is compacted: from key to key; and the files to be read.

    `anew` where the last level has no file yet; `window` is what it was chosen by.
    """

    first: bytes | None
    last: bytes | None
    inputs: list[LevelFile]
    anew: bool = False
    window: Window | None = None


def pressure(files: Sequence[LevelFile], share: int) -> float:
    """How large the second level is, as a multiple of what it may be.

    Args:
        share: bytes that the database may have on the volume.
    """
    second = sum(file.size for file in files if file.level == LAST_LEVEL - 1)
    last = sum(file.size for file in files if file.level == LAST_LEVEL)
    most = min(max(SECOND_LEVEL_BYTES, last // SECOND_LEVEL_SHARE), share // CACHE_SHARE)
    return second / max(1, most)


def chosen_slice(files: Sequence[LevelFile], window: Window | None = None) -> Slice:
    """Files of the last level, side by side, that most of the second level lies over.

    Of files in the first level it is not known where they come to: bring them down before.

    Args:
        window: where an earlier choice is kept to; the last level has not changed since.
    """
    second = sorted((f for f in files if f.level < LAST_LEVEL), key=lambda f: f.first)
    last = sorted((f for f in files if f.level == LAST_LEVEL), key=lambda f: f.first)
    if not last:
        return Slice(None, None, list(second), anew=True)
    window = first, end = window or _heaviest(second, last)
    # RocksDB takes whole files, and with one that ends at a key all that begin there.
    above = _closed(second, first, end)
    if above:
        first = first and min(first, above[0].first)
        end = end and max(end, above[-1].last)
    return Slice(first, end, [*above, *_closed(last, first, end)], window=window)


def _heaviest(second: Sequence[LevelFile], last: Sequence[LevelFile]) -> Window:
    windows = range(max(1, len(last) - SLICE_FILES + 1))
    return max(
        (_window(last, at) for at in windows),
        key=lambda ends: sum(file.size for file in _within(second, *ends)),
    )


def _window(last: Sequence[LevelFile], at: int) -> Window:
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
