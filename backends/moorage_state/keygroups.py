"""Key groups: the unit in which keyed state is handed out to subtasks.

Decides which subtask owns which key group. Called by the planner (where does a record go), by the
state server (which keys does a range hold) and by restore (who gets what after a rescale). Knows
nothing of keys: the hash from key to key group is recorded by id, and computed elsewhere.

The formulas are Flink's ``KeyGroupRangeAssignment``.
"""

from dataclasses import dataclass

MAX_PARALLELISM_LIMIT = 32768
"""Key groups travel as two bytes and stay below Flink's own limit."""

SPARK_XXHASH64 = "spark-xxhash64"
"""Id of the key hash ``pmod(xxhash64(key columns), maxParallelism)``, recorded in every lineage."""

FLINK_MURMUR = "flink-murmur"
"""Id of Flink's key hash: `murmur(hashCode of the key) mod maxParallelism`, see `keyhashes`."""

KEY_HASHES = (SPARK_XXHASH64, FLINK_MURMUR)
"""All that this release knows; one lineage never mixes two."""

_DEFAULT_LOWER_BOUND = 128


@dataclass(frozen=True, slots=True, order=True)
class KeyGroupRange:
    """A contiguous run of key groups, both ends included."""

    start: int
    end: int

    def __contains__(self, key_group: object) -> bool:
        return isinstance(key_group, int) and self.start <= key_group <= self.end

    def __len__(self) -> int:
        return max(0, self.end - self.start + 1)

    def overlap(self, other: "KeyGroupRange") -> int:
        """Number of key groups that both ranges hold."""
        return max(0, min(self.end, other.end) - max(self.start, other.start) + 1)


def range_of(subtask: int, parallelism: int, max_parallelism: int) -> KeyGroupRange:
    """The range that `subtask` (0-based) of `parallelism` owns; ValueError if these do not fit."""
    if not 0 < parallelism <= max_parallelism <= MAX_PARALLELISM_LIMIT:
        raise ValueError(
            f"parallelism must be between 1 and maxParallelism (at most {MAX_PARALLELISM_LIMIT}): "
            f"parallelism={parallelism} maxParallelism={max_parallelism}"
        )
    if not 0 <= subtask < parallelism:
        raise ValueError(f"no such subtask: subtask={subtask} parallelism={parallelism}")
    start = (subtask * max_parallelism + parallelism - 1) // parallelism
    end = ((subtask + 1) * max_parallelism - 1) // parallelism
    return KeyGroupRange(start, end)


def owner(key_group: int, parallelism: int, max_parallelism: int) -> int:
    """The subtask that owns `key_group`."""
    return key_group * parallelism // max_parallelism


def default_max_parallelism(parallelism: int) -> int:
    """Flink's derived maxParallelism: the next power of two of 1.5 p, within [128, 32768]."""
    wanted = parallelism + parallelism // 2
    power = 1 << max(0, wanted - 1).bit_length()
    return min(max(power, _DEFAULT_LOWER_BOUND), MAX_PARALLELISM_LIMIT)


def resolved_max_parallelism(parallelism: int, wanted: int | None, restored: int | None) -> int:
    """The maxParallelism of a job that starts, by Flink's rules.

    `wanted` is what the job sets, `restored` that of the snapshot it starts from; None where there
    is none. Raises ValueError where they differ, or parallelism does not fit.
    """
    if wanted is not None and restored is not None and wanted != restored:
        raise ValueError(
            f"maxParallelism is fixed for a lineage: set={wanted} snapshot={restored}; set it back "
            f"to {restored}, or leave it out"
        )
    found = wanted if wanted is not None else restored
    found = default_max_parallelism(parallelism) if found is None else found
    if not 0 < parallelism <= found <= MAX_PARALLELISM_LIMIT:
        raise ValueError(
            f"parallelism must be between 1 and maxParallelism (at most {MAX_PARALLELISM_LIMIT}): "
            f"parallelism={parallelism} maxParallelism={found}; lower parallelism"
        )
    return found
