"""Tasks that tell where they run and what they are given, and epochs made of them."""

import os
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import functions as F  # noqa: N812  the name everybody reads

from moorage.engine.placement import AnchoredPlacement, ExecutorWatch, assign

SUBTASKS = 6
SEEN = "partition int, executor string, rows long, targets string"


class Placing:
    """Shares subtasks among the executors that there are, as a cluster's servers do."""

    def __init__(self, context):
        self._watch, self._inner = ExecutorWatch(context), AnchoredPlacement(context)
        self.owners = {}

    def look(self):
        self._inner.look()

    def place(self, df, parallelism):
        owners = assign(self.owners, self._watch.live(), parallelism)
        if owners != self.owners:
            self.pin(owners)
        return self._inner.place(df, parallelism)

    def pin(self, owners):
        self.owners = owners
        self._inner.pin(owners)


class Pinned(Placing):
    """Keeps to these owners."""

    def __init__(self, context, owners):
        super().__init__(context)
        self.pin(owners)

    def place(self, df, parallelism):
        return self._inner.place(df, parallelism)


def executor_process():
    """Process id and Spark id of the executor above this Python worker."""
    pid = os.getpid()
    while pid > 1:
        arguments = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        if "--executor-id" in arguments:
            return pid, arguments[arguments.index("--executor-id") + 1]
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0, ""


def partition_id():
    context = TaskContext.get()
    assert context is not None
    return context.partitionId()


def look(batches):
    rows, targets = 0, set()
    for batch in batches:
        rows += batch.num_rows
        targets |= set(batch.column("_m_target").to_pylist())
    yield pa.RecordBatch.from_arrays(
        [
            pa.array([partition_id()], pa.int32()),
            pa.array([executor_process()[1]]),
            pa.array([rows], pa.int64()),
            pa.array([",".join(map(str, sorted(targets)))]),
        ],
        names=["partition", "executor", "rows", "targets"],
    )


def rows_for(spark, targets, rows=600):
    return spark.range(0, rows).select(
        (F.col("id") % targets).cast("int").alias("_m_target"), "id", F.lit("x").alias("value")
    )


def observe(placement, df, task=look):
    """Run one epoch; per subtask [executor, rows, targets], and the assignment it ran under."""
    placement.look()
    placed = placement.place(df, SUBTASKS)
    owners = getattr(placement, "owners", {})
    seen = sorted(placed.mapInArrow(task, SEEN).collect())
    return {
        "partitions": [row.partition for row in seen],
        "ran": [row.executor for row in seen],
        "rows": [row.rows for row in seen],
        "targets": [row.targets for row in seen],
        "asked": [owners.get(task) for task in range(SUBTASKS)],
    }
