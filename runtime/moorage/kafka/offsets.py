"""Offsets of partitions: where an epoch begins and ends, and what each task reads of it.

The JSON is that of Spark's connector, `{"topic": {"0": 23}}`, an offset being the next to read: it
lies in checkpoints, and a job may go on from it with either source. Knows no client.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

__all__ = ["Offsets", "Partition", "Slice", "as_json", "dealt", "from_json", "planned"]

Partition = tuple[str, int]
Offsets = dict[Partition, int]
OffsetJson = dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True)
class Slice:
    """What one task reads: a partition from `start` up to, and without, `end`."""

    topic: str
    partition: int
    start: int
    end: int


def as_json(offsets: Mapping[Partition, int]) -> OffsetJson:
    """Offsets as Spark keeps them, always in one order: it compares them as text."""
    found: OffsetJson = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def from_json(found: OffsetJson) -> Offsets:
    """What `as_json` made, or the connector."""
    return {
        (topic, int(partition)): int(offset)
        for topic, each in found.items()
        for partition, offset in each.items()
    }


def dealt(start: Mapping[Partition, int], latest: Mapping[Partition, int], limit: int) -> Offsets:
    """The end of an epoch that takes about `limit` records, by how much each partition has.

    Each partition with records gets one at least: none is starved, however long another's backlog.
    """
    waiting = {at: max(0, offset - start.get(at, 0)) for at, offset in latest.items()}
    total = sum(waiting.values())
    if total <= limit:
        return dict(latest)
    ends: Offsets = {}
    for at, offset in latest.items():
        share = limit * waiting[at] / total
        taken = math.ceil(share) if share < 1 else math.floor(share)
        # What went back stands where it is now, not where it was.
        ends[at] = min(offset, start.get(at, 0) + taken)
    return ends


def planned(
    start: Mapping[Partition, int], end: Mapping[Partition, int]
) -> tuple[list[Slice], list[str]]:
    """The slices of an epoch, and what cannot be read any more, in words.

    A partition that `start` does not know is read from offset 0.
    """
    slices, lost = [], []
    for (topic, partition), until in sorted(end.items()):
        begin = start.get((topic, partition), 0)
        if until > begin:
            slices.append(Slice(topic, partition, begin, until))
        elif until < begin:
            lost.append(
                f"partition {topic}-{partition} went back: its next offset was {begin} and is "
                f"{until}; was the topic deleted and made anew?"
            )
    lost += gone(start, end)
    return slices, lost


def gone(start: Mapping[Partition, int], end: Iterable[Partition]) -> list[str]:
    """Partitions that were there and are no more, in words."""
    missing = sorted(set(start) - set(end))
    return [
        f"partition {topic}-{partition} is gone: its next offset was {start[topic, partition]}"
        for topic, partition in missing
    ]
