"""When what is left of an old pack is better written again than referenced. Pure."""

from collections import Counter
from collections.abc import Iterable

from moorage_state.snapshots.layout import pack_size
from moorage_state.snapshots.manifest import RangeHandle

__all__ = ["worn_packs"]

_SMALL_PACK_BYTES = 1 << 20


def worn_packs(handles: Iterable[RangeHandle], most_small: int = 32) -> frozenset[str]:
    """Return the packs that the checkpoint after the one with these handles does not build on.

    They are those of which less than half is referenced: so no checkpoint keeps more than twice
    the bytes alive that it needs. And, once there are more than `most_small` of them, those under
    1 MiB, which small increments leave behind one by one. What is still needed of them is in the
    local snapshot and goes into the next pack; the old ones die with the last manifest that
    references them.

    Args:
        handles: all handles of the base, of all servers: a pack may be shared by several of them.
        most_small: some multiple of the number of servers, each of which writes its own packs.
    """
    slices = {
        (file.key, file.offset): file.size
        for handle in handles
        for file in handle.files
        if file.shared and pack_size(file.key) is not None
    }
    used: Counter[str] = Counter()
    for (key, _), size in slices.items():
        used[key] += size
    sizes = {key: pack_size(key) or 0 for key in used}
    worn = {key for key, size in sizes.items() if 2 * used[key] < size}
    small = {key for key, size in sizes.items() if size < _SMALL_PACK_BYTES}
    return frozenset(worn | small if len(small) > most_small else worn)
