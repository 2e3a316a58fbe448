"""Attaching sinks to a stream: where relative paths and staged rows go, and what is refused."""

from types import SimpleNamespace
from typing import cast

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from moorage.api.file_sink import FileSink
from moorage.api.foreach_sinks import ForeachCheckpoint, ForeachEpoch
from moorage.api.streams import StreamEnvironment
from moorage_state.errors import UserError

ROWS = StructType([StructField("user", StringType()), StructField("n", LongType())])


@pytest.fixture
def env(store_url):
    return StreamEnvironment(cast("SparkSession", None), base_dir="/job", staging=store_url)


@pytest.fixture
def stream(env):
    return env.from_spark("in", SimpleNamespace(isStreaming=True, schema=ROWS))


def test_a_path_is_relative_to_the_job_file_as_inputs_are(env, stream):
    given = FileSink("out", partition_by=["user"])
    stream.sink_to(given, uid="out")
    (node,) = env.graph.sinks
    assert node.sink.path == "/job/out"
    assert (given.path, node.sink.partition_by) == ("out", ("user",))


@pytest.mark.parametrize("second", ["/job/out", "./out/", "file:///job/out"])
def test_two_sinks_cannot_share_a_directory_however_it_is_spelled(stream, second):
    stream.sink_to(FileSink("out"), uid="a")
    with pytest.raises(UserError, match="two sinks of the job write to one directory"):
        stream.sink_to(FileSink(second), uid="b")


@pytest.mark.parametrize(
    ("reads", "writes"),
    [
        ("/job/out", "out"),
        ("/job/out/", "file:///job/out"),
        ("file:///job/out", "./x/../out"),
        ("s3a://bucket/out/", "s3://bucket/out"),
    ],
)
def test_a_sink_does_not_write_where_the_job_reads(env, reads, writes):
    stream = env.from_spark("in", SimpleNamespace(isStreaming=True, schema=ROWS), files=reads)
    stream.sink_to(FileSink("elsewhere"), uid="other")
    with pytest.raises(UserError, match=r"where an input of the job reads.*uids=\['in', 'out'\]"):
        stream.sink_to(FileSink(writes), uid="out")


def test_partitions_that_the_stream_does_not_have_are_refused_at_once(stream):
    with pytest.raises(UserError, match=r"partition_by=\['day'\] columns=\['user', 'n'\]"):
        stream.sink_to(FileSink("out", partition_by=["day"]), uid="out")


def test_a_store_of_one_process_is_refused(stream):
    with pytest.raises(UserError, match="a memory store is of one process"):
        stream.sink_to(FileSink("memory://here"), uid="out")


def test_functions_are_sinks_with_a_place_to_stage(env, stream, store_url):
    same = stream.foreach_epoch(print, uid="epochs").foreach_checkpoint(print, uid="checkpoints")
    assert same is stream
    assert [type(node.sink) for node in env.graph.sinks] == [ForeachEpoch, ForeachCheckpoint]
    assert {node.sink._staging for node in env.graph.sinks} == {store_url}
    with pytest.raises(UserError, match="same uid"):
        stream.foreach_epoch(print, uid="epochs")
