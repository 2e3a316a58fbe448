"""Spark's workers come out of our daemon, with everything imported and nothing out of archives."""

import gc
import os
import sys
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest

pytestmark = pytest.mark.spark

SEEN = "daemon string, pyspark string, archives long, frozen long"


def look(batches):
    for _ in batches:
        daemon = Path(f"/proc/{os.getppid()}/cmdline").read_text().replace("\0", " ")
        archives = sum(Path(entry).is_file() for entry in sys.path)
        row = [daemon, pyspark.__file__, archives, gc.get_freeze_count()]
        names = ["daemon", "pyspark", "archives", "frozen"]
        yield pa.RecordBatch.from_arrays([pa.array([value]) for value in row], names=names)


def test_a_worker_has_inherited_what_it_needs_as_it_is_installed(spark):
    (seen,) = spark.range(1).coalesce(1).mapInArrow(look, SEEN).collect()
    assert "-m moorage.engine.worker_daemon pyspark.worker" in seen.daemon
    assert seen.pyspark == pyspark.__file__
    assert seen.archives == 0
    # More than these lines alone could have: what was imported before the fork.
    assert seen.frozen > 50_000
