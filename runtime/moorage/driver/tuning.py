"""Settings that save work without changing what is computed.

Decides them from what is known of a job before it runs; whatever the job names itself stays.
Called when the session is made and when the job's graph is known.
"""

from pyspark.sql import SparkSession
from pyspark.sql.types import (
    BooleanType,
    DateType,
    NumericType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from moorage.api.graph import JobGraph
from moorage.driver.settings import JobSettings

__all__ = ["COMPILER", "spare_byte_counts"]

COMPILER = (
    "-XX:Tier4InvocationThreshold=100000",
    "-XX:Tier4MinInvocationThreshold=50000",
    "-XX:Tier4CompileThreshold=200000",
)
"""Java's second compiler takes loops, and what is called a hundred thousand times: for every row.

To compile what plans an epoch costs more than it saves in hours.
"""

_BYTE_LIMIT = "spark.sql.execution.arrow.maxBytesPerBatch"
_NO_LIMIT = (1 << 31) - 1
_FIXED_WIDTH = (NumericType, BooleanType, DateType, TimestampType, TimestampNTZType)
# Of 16 bytes at most, times the rows of a batch: less than Spark's own limit of 64 MB.
_NARROW_COLUMNS = 64


def spare_byte_counts(spark: SparkSession, graph: JobGraph, settings: JobSettings) -> None:
    """Have Spark not add up the bytes of an Arrow batch at each row, where rows are narrow.

    A limit of bytes costs a fifth of what executors do for a row, and says nothing where every
    row has a known width: the limit of rows comes first. Streams that begin later take it over.
    """
    consumers = [operator.upstream.schema for operator in graph.operators]
    consumers += [sink.upstream.schema for sink in graph.sinks]
    if _BYTE_LIMIT not in settings.spark_conf and all(map(_is_narrow, consumers)):
        spark.conf.set(_BYTE_LIMIT, str(_NO_LIMIT))


def _is_narrow(schema: StructType) -> bool:
    fixed = all(isinstance(field.dataType, _FIXED_WIDTH) for field in schema.fields)
    return fixed and len(schema.fields) <= _NARROW_COLUMNS
