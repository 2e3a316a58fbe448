"""Kafka's source within Spark: epochs, limits, restarts, losses; no secret is shown."""

from contextlib import contextmanager
from importlib.util import find_spec
from itertools import chain

import pytest
from moorage_testing.jobs import wait_until
from moorage_testing.mock_kafka import mock_kafka

from moorage import StreamEnvironment
from moorage.engine.sparklog import capture, lay
from moorage.engine.task_failures import SourceOffsetsLost, failure_of
from moorage_state.errors import Retryable, UserError

pytestmark = pytest.mark.spark

# Spark 4.1 has none for Python sources.
LIMITS = find_spec("pyspark.sql.streaming.datasource") is not None


@pytest.fixture(scope="module")
def kafka():
    with mock_kafka() as brokers:
        yield brokers


def frame_of(spark, kafka, uid="events", env=None, **options):
    env = env or StreamEnvironment(spark, max_records_per_epoch=5)
    base = {"kafka.bootstrap.servers": kafka.servers, "startingOffsets": "earliest"}
    env.read_stream(uid, "moorage-kafka", **{**base, **options})
    return env.graph.inputs[-1].frame


@contextmanager
def running(frame, location, **trigger):
    """A query, and the records of its epochs as (partition, offset)."""
    epochs = []

    def on_batch(batch, _number):
        epochs.append([(row.partition, row.offset) for row in batch.collect()])

    writer = frame.writeStream.foreachBatch(on_batch).option("checkpointLocation", str(location))
    query = writer.trigger(**trigger).start()
    try:
        yield query, epochs
    finally:
        query.stop()


def all_available(frame, location):
    with running(frame, location, availableNow=True) as (query, epochs):
        query.awaitTermination()
        return epochs


def test_epochs_keep_to_the_limit_and_a_query_goes_on_from_the_offsets_that_moorage_laid(
    spark, kafka, tmp_path, capsys
):
    kafka.create("a", 2)
    kafka.produce("a", 0, *[b"%d" % n for n in range(10)])
    kafka.produce("a", 1, b"x", b"y")
    secrets = {"kafka.sasl.password": "hunter1", "kafka.ssl.key.pem": "hunter2"}
    frame = frame_of(spark, kafka, subscribe="a", **secrets)
    with running(frame, tmp_path / "first", availableNow=True) as (query, epochs):
        query.awaitTermination()
        query.explain(extended=True)
        progress = str(query.lastProgress)
    frame.explain(extended=True)
    assert "moorage-kafka" in (shown := capsys.readouterr().out)
    kept = b"".join(p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())
    assert "hunter" not in f"{shown}{progress}{kept!r}"
    assert max(map(len, epochs)) <= (6 if LIMITS else 12)
    assert sorted(chain(*epochs)) == [*((0, n) for n in range(10)), (1, 0), (1, 1)]

    # What a checkpoint holds of the epoch before the last: a run from there reads the last again.
    last = len(epochs) - 2 if LIMITS else 0
    log = capture(tmp_path / "first", last, ["events"])
    assert set(log.inputs["events"].files) == set()
    lay(tmp_path / "second", log, ["events"])
    kafka.produce("a", 0, b"more")
    again = all_available(frame_of(spark, kafka, "My.events", subscribe="a"), tmp_path / "second")
    assert sorted(chain(*again)) == sorted([*chain(*epochs[last + 1 :]), (0, 10)])


def test_a_topic_that_appears_is_read_from_its_first_record(spark, kafka, tmp_path):
    kafka.create("b-1", 1)
    kafka.produce("b-1", 0, b"1")
    frame = frame_of(spark, kafka, subscribePattern="b-.*")
    with running(frame, tmp_path, processingTime="0 seconds") as (_, epochs):
        wait_until(lambda: epochs, 60, "the first epoch")
        kafka.create("b-2", 1)
        kafka.produce("b-2", 0, b"1", b"2")
        wait_until(lambda: sum(map(len, epochs)) >= 3, 60, "records of the new topic")
    assert epochs[0] == [(0, 0)]
    assert list(chain(*epochs[1:])) == [(0, 0), (0, 1)]


def test_records_that_expired_behind_a_checkpoint_are_told_as_such_or_passed_over(
    spark, kafka, tmp_path
):
    kafka.create("c", 1)
    kafka.produce("c", 0, b"first")
    location, again = tmp_path / "kept", tmp_path / "again"
    assert all_available(frame_of(spark, kafka, subscribe="c"), location) == [[(0, 0)]]
    lay(again, capture(location, 0, ["events"]), ["events"])
    kafka.produce("c", 0, *[b"x" * 90_000] * 100)  # the mock keeps 5 MB
    env = StreamEnvironment(spark)
    with pytest.raises(Exception, match="offsets_lost") as failed:
        all_available(frame_of(spark, kafka, env=env, subscribe="c"), location)
    failure = failure_of(failed.value)
    assert isinstance(failure, SourceOffsetsLost), failure
    assert "partition c-0 has nothing at offset 1, the next to read" in str(failure)
    assert "restore.onMissingOffsets: Skip" in str(failure)

    skipping = StreamEnvironment(spark, skip_missing_offsets=True)
    [epoch] = all_available(frame_of(spark, kafka, env=skipping, subscribe="c"), again)
    assert epoch[-1] == (0, 100)
    assert 0 < len(epoch) < 100


def test_what_fails_beside_the_driver_is_told_apart(spark, kafka, tmp_path):
    nowhere = {"subscribe": "nowhere", "kafkaConsumer.pollTimeoutMs": "1000"}
    with pytest.raises(Exception, match="no partition") as failed:
        all_available(frame_of(spark, kafka, **nowhere), tmp_path / "a")
    failure = failure_of(failed.value)
    assert type(failure) is UserError, failure
    assert "topics=['nowhere']" in str(failure)

    silent = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafkaConsumer.pollTimeoutMs": "300"}
    with pytest.raises(Exception, match="listing topics") as failed:
        all_available(frame_of(spark, kafka, subscribe="a", **silent), tmp_path / "b")
    assert type(failure_of(failed.value)) is Retryable
