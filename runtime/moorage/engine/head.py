"""The rows that come before data in a subtask's partition.

One start row says which subtask the partition is; acknowledgement rows say which attempts of the
operator before it produced the data. Decides whether the partition is whole. Called by the
subtask before its first row.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from moorage.engine.acks import EpochConflict, EpochIncomplete, decode_ack
from moorage.engine.columns import ACK_COLUMN, GROUP_COLUMN, KIND_COLUMN, ROW, START
from moorage.engine.failures import SubtaskFailure

__all__ = ["Head", "read_head"]


@dataclass(frozen=True, slots=True)
class Head:
    """Which subtask this is, and the acknowledgements of the upstream operator, encoded."""

    subtask: int
    acks: tuple[bytes, ...]

    def upstream_digests(self, uid: str, count: int, where: str) -> dict[int, str]:
        """By subtask of the upstream operator `uid`, the digest of the attempt that is read.

        Raises:
            SubtaskFailure: two attempts of a subtask are mixed, or not all `count` are there.
        """
        digests: dict[int, str] = {}
        for raw in self.acks:
            ack = decode_ack(raw)
            if digests.setdefault(ack.subtask, ack.digest) != ack.digest:
                raise SubtaskFailure(
                    EpochConflict.code,
                    f"two attempts of upstream subtask {ack.subtask} of {uid} reached {where}",
                )
        if len(digests) != count:
            raise SubtaskFailure(
                EpochIncomplete.code,
                f"{where} heard of {len(digests)} of {count} upstream subtasks of {uid}",
            )
        return digests


def read_head(batches: Iterator[pa.RecordBatch]) -> tuple[Head, Iterator[pa.RecordBatch]]:
    """Split off the leading start and acknowledgement rows; they sort before all others.

    Raises:
        SubtaskFailure: there is not exactly one start row.
    """
    subtasks: list[int] = []
    acks: list[bytes] = []
    for batch in batches:
        kinds = batch.column(KIND_COLUMN).to_numpy()
        count = int(np.count_nonzero(kinds > ROW))
        for i in range(count):
            if kinds[i] == START:
                subtasks.append(batch.column(GROUP_COLUMN)[i].as_py())
            else:
                acks.append(batch.column(ACK_COLUMN)[i].as_py())
        if count < batch.num_rows:
            return _head(subtasks, acks), _chain(batch.slice(count), batches)
    return _head(subtasks, acks), iter(())


def _chain(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest


def _head(subtasks: list[int], acks: list[bytes]) -> Head:
    if len(subtasks) != 1:
        raise SubtaskFailure(
            EpochIncomplete.code,
            f"a partition holds the rows of {len(subtasks)} subtasks: subtasks={subtasks}",
        )
    return Head(subtasks[0], tuple(acks))
