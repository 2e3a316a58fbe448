"""Sinks without an operator before them: what runs inside their `mapInArrow`.

Called by Spark in a Python worker, once for each partition of an input.
"""

from collections.abc import Iterator
from uuid import uuid4

import pyarrow as pa

from moorage.api.sinks import Sink, StageId
from moorage.engine.acks import Ack, encode_ack
from moorage.engine.columns import ACK_COLUMN

__all__ = ["stage_rows"]


def stage_rows(
    lineage: str,
    run: str,
    epoch: int,
    uid: str,
    sink: Sink,
    schema: pa.Schema,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Stage a partition of rows for a sink and acknowledge it."""
    writer = sink.open_writer(StageId(lineage, run, epoch, uid, uuid4().int % 100_000), schema)
    rows = 0
    try:
        for batch in batches:
            writer.write(batch.cast(schema))
            rows += batch.num_rows
        staged = {uid: items} if (items := writer.finish()) else {}
    except BaseException:
        writer.abort()
        raise
    ack = Ack(uid=uid, subtask=0, run=run, epoch=epoch, rows_in=rows, committables=staged)
    yield pa.RecordBatch.from_arrays([pa.array([encode_ack(ack)], pa.binary())], [ACK_COLUMN])
