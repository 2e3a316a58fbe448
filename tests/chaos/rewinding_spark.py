"""Spark's own aggregation over a directory of files, for contrast: one run, to the end of input.

Arguments: the directory of input files, the checkpoint location, files per batch, batches between
snapshots of state. Prints the final counts by key as JSON.
"""

import json
import sys

from pyspark.sql import SparkSession

STATE_STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def main(source: str, checkpoint: str, files_per_batch: str, snapshot_every: str) -> None:
    """Run the query and print what it says."""
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.streaming.stateStore.providerClass": STATE_STORE,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.streaming.stateStore.minDeltasForSnapshot": snapshot_every,
        "spark.sql.streaming.stateStore.maintenanceInterval": "100ms",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    counts: dict[int, int] = {}

    def keep(frame, _batch):
        counts.update({row["key"]: row["count"] for row in frame.collect()})

    events = spark.readStream.schema("key long, value long").option(
        "maxFilesPerTrigger", files_per_batch
    )
    query = (
        events.parquet(source)
        .groupBy("key")
        .count()
        .writeStream.outputMode("update")
        .foreachBatch(keep)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()
    sys.stdout.write(json.dumps({"counts": counts}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
