"""Keys and values that can be computed again: nothing has to be remembered to check a restore.

The value of a key is a hash of the key and of how often it was written, so it does not compress.
"""

import numpy as np
import numpy.typing as npt

from benchmarks.snapshots.params import VALUE_BYTES
from moorage_state.keylayout import state_id
from moorage_state.keys import KeyCodec

__all__ = ["MAX_PARALLELISM", "groups_of", "ordered", "values_of"]

MAX_PARALLELISM = 128

_LANES = -(-VALUE_BYTES // 8)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_STATE = state_id("value")
_CODEC = KeyCodec(["bigint"])

Keys = npt.NDArray[np.int64]
Counts = npt.NDArray[np.uint16]


def groups_of(keys: Keys) -> Keys:
    """The key group of each key, spread as evenly as Spark's hash does."""
    return (_mixed(keys.view(np.uint64)) % np.uint64(MAX_PARALLELISM)).view(np.int64)


def values_of(keys: Keys, writes: Counts) -> list[bytes]:
    """The value of each key after it was written `writes` times."""
    seed = _mixed(keys.view(np.uint64) * np.uint64(1 << 16) + writes.astype(np.uint64))
    lanes = np.arange(1, _LANES + 1, dtype=np.uint64) * _GOLDEN
    raw = _mixed(seed[:, None] + lanes[None, :]).tobytes()
    size = _LANES * 8
    return [raw[at : at + VALUE_BYTES] for at in range(0, len(raw), size)]


def ordered(keys: Keys) -> tuple[list[bytes], Keys]:
    """The stored key of each key, sorted, and the positions that sort the keys so."""
    found = _CODEC.ordered(groups_of(keys), [keys])
    stored = [prefix + _STATE for prefix in found.prefixes]  # all in order but the last
    order = sorted(range(len(stored)), key=stored.__getitem__)
    return [stored[at] for at in order], found.order[order]


def _mixed(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finalizer of splitmix64: every bit of the input changes half of the bits."""
    x = x + _GOLDEN
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
