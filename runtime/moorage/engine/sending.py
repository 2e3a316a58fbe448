"""Where an operator's output goes in one subtask: to its sinks, and on to the next operator.

Decides what the digest covers that consumers compare. Called by the subtask and its key loop.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from moorage.engine.columns import row_batch
from moorage.engine.rows import OutputBuffer
from moorage.engine.subtask_plan import SubtaskPlan
from moorage.engine.whole_columns import hash_column
from moorage.sinks import SinkWriter, StageId

__all__ = ["Sending"]


class Sending:
    """The output of one attempt of one subtask; used once.

    Attributes:
        buffer: what the function has yielded since the last `flush`.
    """

    def __init__(self, plan: SubtaskPlan, subtask: int) -> None:
        self._plan = plan
        self._subtask = subtask
        self.buffer = OutputBuffer(plan.uid, plan.output)
        self._writers: list[tuple[str, SinkWriter]] = []
        self._hash = xxhash.xxh3_128()
        self._sent = 0

    @property
    def digest(self) -> str:
        """Of all rows that went downstream; empty where nothing is downstream."""
        return self._hash.hexdigest() if self._plan.downstream else ""

    def open(self) -> None:
        """Open a writer for each sink."""
        plan = self._plan
        stage = StageId(plan.lineage, plan.run, plan.epoch, plan.uid, self._subtask)
        for uid, sink in plan.sinks:
            self._writers.append((uid, sink.open_writer(stage, plan.output)))

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Send what the buffer holds; yields what is for the next operator.

        Raises:
            UserError: a row is not of the declared schema.
        """
        rows, batch = self.buffer.take()
        if not rows:
            return
        for _, writer in self._writers:
            writer.write(batch)
        if self._plan.downstream:
            self._hash.update(_hashable(rows))
            yield row_batch(batch, self._subtask, self._sent)
            self._sent += batch.num_rows

    def send(self, made: Any) -> Iterator[pa.RecordBatch]:
        """Send a table or batch that a vectorized function gave, like `flush`."""
        for batch in self.buffer.batches_of(made):
            for _, writer in self._writers:
                writer.write(batch)
            if self._plan.downstream:
                for column in batch.columns:
                    hash_column(self._hash, column)
                yield row_batch(batch, self._subtask, self._sent)
                self._sent += batch.num_rows

    def finish(self) -> dict[str, list[dict[str, Any]]]:
        """What the sinks staged, by their uid; writers that staged nothing are left out."""
        staged = {uid: writer.finish() for uid, writer in self._writers}
        self._writers = []
        return {uid: items for uid, items in staged.items() if items}

    def writers(self) -> list[SinkWriter]:
        """Those that are open: what they staged is to be dropped after a failure."""
        return [writer for _, writer in self._writers]


def _plain(value: Any) -> Any:
    """What stands for a value in a digest: all of it, where `repr` would shorten an array."""
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else repr(value)


_pack = msgspec.msgpack.Encoder(enc_hook=_plain).encode


def _hashable(rows: list[Any]) -> bytes:
    try:
        return _pack(rows)
    except OverflowError:  # integers of more than 64 bits, in a column of decimals
        return repr(rows).encode()
