"""One life of a driver that only ticks, as `cluster_life` has them, and tells how large its JVM is.

    python ticking_life.py HOME ORDERS

Each line of `HOME/heap.log` is what the driver's JVM holds after a collection, in bytes.
"""

import json
import sys
import threading
import time
from pathlib import Path

import cluster_life
from pyspark import SparkContext

EVERY_SECONDS = 20.0


def weigh(home: Path) -> None:
    """Collect, and say what is left; for as long as the process lives."""
    while True:
        time.sleep(EVERY_SECONDS)
        context = SparkContext._active_spark_context
        if context is None or context._jvm is None:
            continue
        context._jvm.System.gc()
        runtime = context._jvm.Runtime.getRuntime()
        with (home / "heap.log").open("a") as log:
            log.write(f"{runtime.totalMemory() - runtime.freeMemory()}\n")


if __name__ == "__main__":
    cluster_life.JOB = Path(__file__).with_name("ticking_job.py")
    threading.Thread(target=weigh, args=(Path(sys.argv[1]),), daemon=True).start()
    cluster_life.live(Path(sys.argv[1]), json.loads(sys.argv[2]))
