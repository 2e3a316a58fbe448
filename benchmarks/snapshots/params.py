"""What is measured and what the goals are. Values only."""

import re
from dataclasses import dataclass

__all__ = [
    "COPY_SHARE_GOAL",
    "KEY_BYTES",
    "PAUSE_GOAL_SECONDS",
    "QUICK",
    "UPLOAD_MEDIAN_GOAL",
    "UPLOAD_WORST_GOAL",
    "VALUE_BYTES",
    "Size",
    "parse_size",
]

KEY_BYTES = 19
"""A stored key: key group, kind, length, eight bytes of the key itself, id of the state."""

VALUE_BYTES = 100

PAUSE_GOAL_SECONDS = 0.050
"""The longest synchronous pause of one subtask, beyond its flush."""

UPLOAD_MEDIAN_GOAL = 0.10
UPLOAD_WORST_GOAL = 0.25
"""What a checkpoint after a change of 1 % of the keys may upload, as a share of its full size."""

COPY_SHARE_GOAL = 0.5
"""The least rate of a restore, as a share of that of a plain parallel copy."""

_UNITS = {"MB": 10**6, "GB": 10**9, "MiB": 1 << 20, "GiB": 1 << 30}


@dataclass(frozen=True, slots=True)
class Size:
    """How much state and how it changes.

    Attributes:
        state_bytes: of all keys and values, before compression.
        changed: share of the keys that are written between two checkpoints.
        checkpoints: how many follow the first, which is full.
        subtasks: ranges, each in a state server of its own.
        epoch_keys: the most keys that one epoch writes; Moorage's own limit of records.
        samples: keys that are read back after a restore.
        retain: checkpoints that are kept.
        rounds: restores that follow a copy, and as many the other way round, cold and warm each.
    """

    state_bytes: int
    changed: float = 0.01
    checkpoints: int = 12
    subtasks: int = 2
    epoch_keys: int = 200_000
    samples: int = 50_000
    retain: int = 3
    rounds: int = 2

    @property
    def keys(self) -> int:
        """How many keys there are."""
        return max(1, self.state_bytes // (KEY_BYTES + VALUE_BYTES))


QUICK = Size(state_bytes=256 * 10**6, rounds=1)


def parse_size(text: str) -> int:
    """Bytes of `4GB`, `256MB`, `1GiB`.

    Raises:
        ValueError: for anything else.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?(MB|GB|MiB|GiB)", text)
    size = round(float(found[1]) * _UNITS[found[2]]) if found else 0
    if size <= 0:
        raise ValueError(f"size is a number above 0 and MB, GB, MiB or GiB: size={text!r}")
    return size
