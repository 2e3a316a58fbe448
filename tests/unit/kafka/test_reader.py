"""The source's reader: what it asks brokers, where epochs begin and end, what tasks read.

Partitions that are added or deleted are told by a stand-in: the mock brokers cannot do that.
"""

import datetime
import pickle
import time

import pytest
from confluent_kafka import Producer
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from moorage.kafka.client import OffsetsLost, SourceFailure
from moorage.kafka.offsets import Slice
from moorage.kafka.options import SourceOptions
from moorage.kafka.source import KafkaReader


class FakeBrokers:
    def __init__(self, first=0, **ends):
        self.first = first
        self.ends = {("events", int(name[1:])): end for name, end in ends.items()}

    def partitions(self):
        return set(self.ends)

    def earliest(self, partitions):
        return dict.fromkeys(partitions, self.first)

    def latest(self, partitions):
        return {at: self.ends[at] for at in partitions}


def reader_on(fake, **options):
    return reader_naming(fake, {"subscribe": "events", **options})


def reader_naming(fake, options):
    base = {"kafka.bootstrap.servers": "127.0.0.1:1"}
    base["kafkaConsumer.pollTimeoutMs"] = "1"  # for what is missing it waits no longer
    return KafkaReader(SourceOptions.parse({**base, **options}), lambda _: fake)


@pytest.mark.parametrize(
    ("starting", "expected"),
    [
        ("earliest", {"0": 3, "1": 3}),
        ("latest", {"0": 10, "1": 20}),
        ('{"events":{"0":7,"1":-2}}', {"0": 7, "1": 3}),
        ('{"events":{"0":-1,"1":8}}', {"0": 10, "1": 8}),
    ],
)
def test_a_new_stream_begins_where_it_is_told(starting, expected):
    reader = reader_on(FakeBrokers(3, p0=10, p1=20), startingOffsets=starting)
    assert reader.initialOffset() == {"events": expected}


@pytest.mark.parametrize("starting", ['{"events":{"0":7}}', '{"events":{"0":7,"1":1,"2":1}}'])
def test_starting_offsets_name_each_partition_once(starting):
    reader = reader_on(FakeBrokers(p0=10, p1=20), startingOffsets=starting)
    with pytest.raises(SourceFailure, match="must name each partition once"):
        reader.initialOffset()


def test_a_topic_that_is_not_there_is_told_and_not_waited_for():
    with pytest.raises(SourceFailure, match=r"user_error.*topics=\['events'\]"):
        reader_on(FakeBrokers()).initialOffset()


@pytest.mark.parametrize(
    ("named", "missing"),
    [
        ({"subscribe": "events,clikcs"}, r"missing=\['clikcs'\]"),
        ({"assign": '{"events":[0,1,7],"clicks":[0]}'}, r"missing=\['clicks-0', 'events-7'\]"),
    ],
)
def test_one_missing_topic_or_partition_among_others_is_told(named, missing):
    with pytest.raises(SourceFailure, match=f"user_error.*{missing}"):
        reader_naming(FakeBrokers(p0=10, p1=20), named).initialOffset()


@pytest.mark.parametrize("named", [{"subscribe": "events,clicks"}, {"subscribePattern": ".*"}])
def test_a_new_stream_waits_for_all_that_is_named(monkeypatch, named):
    fake = FakeBrokers(p0=10)
    monkeypatch.setattr(time, "sleep", lambda _: fake.ends.update({("clicks", 0): 7}))
    begin = reader_naming(fake, {**named, "kafkaConsumer.pollTimeoutMs": "30000"}).initialOffset()
    waited = {"clicks": {"0": 7}} if "subscribe" in named else {}
    assert begin == {**waited, "events": {"0": 10}}


def test_an_epoch_takes_no_more_than_the_limit_and_a_trigger_may_lift_it():
    reader = reader_on(FakeBrokers(p0=100, p1=100), maxOffsetsPerTrigger="10")
    start = {"events": {"0": 0, "1": 0}}
    assert reader.getDefaultReadLimit() == ReadMaxRows(10)
    assert reader.latestOffset(start, ReadMaxRows(10)) == {"events": {"0": 5, "1": 5}}
    assert reader.latestOffset(start, ReadAllAvailable()) == {"events": {"0": 100, "1": 100}}


def test_spark_4_1_which_names_no_limit_gets_all_there_is():
    """It asks the same for the end of a bounded run, which must not be that of its first epoch."""
    reader = reader_on(FakeBrokers(p0=100), maxOffsetsPerTrigger="10")
    assert reader.latestOffset() == {"events": {"0": 100}}


def test_a_partition_that_appears_in_mid_stream_is_read_from_its_first_record():
    fake = FakeBrokers(p0=10)
    reader = reader_on(fake)
    start = {"events": {"0": 10}}
    fake.ends["events", 1] = 4
    end = reader.latestOffset(start, ReadAllAvailable())
    assert [p.value for p in reader.partitions(start, end)] == [Slice("events", 1, 0, 4)]


def test_a_new_partition_whose_first_records_expired_is_read_from_what_is_left():
    fake = FakeBrokers(5000, p0=6000, p1=5004)
    reader = reader_on(fake)
    start = {"events": {"0": 6000}}
    end = reader.latestOffset(start, ReadMaxRows(2))
    assert end == {"events": {"0": 6000, "1": 5002}}
    assert [p.value for p in reader.partitions(start, end)] == [Slice("events", 1, 5000, 5002)]
    fake.first = 5003  # since the epoch was planned, that of the next one has expired
    assert reader.partitions(start, end) == []


@pytest.mark.parametrize("ends", [{"p0": 10}, {"p0": 10, "p1": 2}])
def test_a_partition_that_went_back_or_away_fails_the_job_unless_told_otherwise(ends):
    start = {"events": {"0": 5, "1": 5}}

    def epoch(reader):
        return [
            p.value for p in reader.partitions(start, reader.latestOffset(start, ReadMaxRows(99)))
        ]

    with pytest.raises(
        OffsetsLost, match=r"\[moorage:source_offsets_lost\] .*: partition events-1"
    ):
        epoch(reader_on(FakeBrokers(**ends)))
    lenient = reader_on(FakeBrokers(**ends), failOnDataLoss="false")
    assert epoch(lenient) == [Slice("events", 0, 5, 10)]


def test_a_partition_that_a_broker_does_not_know_yet_is_asked_for_again(monkeypatch):
    fake = FakeBrokers(p0=10)
    monkeypatch.setattr(time, "sleep", lambda _: fake.ends.update({("events", 1): 7}))
    reader = reader_on(fake, **{"kafkaConsumer.pollTimeoutMs": "30000"})
    start = {"events": {"0": 10, "1": 7}}
    assert reader.latestOffset(start, ReadAllAvailable()) == start
    fake.ends.clear()
    assert reader.initialOffset() == {"events": {"1": 7}}


@pytest.mark.parametrize("named", [True, False])  # Spark 4.1 names no start
def test_a_partition_that_was_away_for_a_while_is_not_read_again(named):
    fake = FakeBrokers(p0=10, p1=7)
    reader = reader_on(fake, failOnDataLoss="false")

    def epoch(start):
        end = reader.latestOffset(*((start, ReadAllAvailable()) if named else ()))
        return end, [p.value for p in reader.partitions(start, end)]

    end, _ = epoch({"events": {"0": 0, "1": 0}})
    del fake.ends["events", 1]
    fake.ends["events", 0] = 12
    end, slices = epoch(end)
    assert (end, slices) == ({"events": {"0": 12, "1": 7}}, [Slice("events", 0, 10, 12)])
    fake.ends["events", 1] = 9
    end, slices = epoch(end)
    assert (end, slices) == ({"events": {"0": 12, "1": 9}}, [Slice("events", 1, 7, 9)])


def test_a_partition_that_is_away_is_waited_for_and_told_once(monkeypatch, caplog):
    fake = FakeBrokers(p0=10, p1=7)
    reader = reader_on(fake, failOnDataLoss="false")
    end = reader.latestOffset()
    del fake.ends["events", 1]
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    assert "partition events-1 is gone: its next offset was 7" in caplog.text
    caplog.clear()
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("waited again"))
    assert reader.latestOffset(end, ReadMaxRows(5)) == end
    assert reader.latestOffset() == end
    assert caplog.text == ""


@pytest.mark.parametrize("bounded", [False, True])
def test_a_partition_that_is_away_when_a_query_begins_keeps_its_place(bounded, caplog):
    fake = FakeBrokers(p0=10)
    reader = reader_on(fake, failOnDataLoss="false")
    start = {"events": {"0": 10, "1": 7}}
    if bounded:
        reader.prepareForTriggerAvailableNow()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert (end, reader.partitions(start, end)) == (start, [])
    assert "partition events-1 is gone: its next offset was 7" in caplog.text
    fake.ends["events", 1] = 9
    again = reader_on(fake, failOnDataLoss="false")
    end = again.latestOffset(start, ReadAllAvailable())
    assert [p.value for p in again.partitions(start, end)] == [Slice("events", 1, 7, 9)]


@pytest.mark.parametrize(
    ("named", "kept"),
    [
        ({"subscribe": "events"}, {"events": {"0": 10, "1": 7}}),
        ({"subscribePattern": "event."}, {"events": {"0": 10, "1": 7}}),
        ({"assign": '{"events":[0]}'}, {"events": {"0": 10}}),
    ],
)
def test_what_the_options_name_no_more_is_out_of_the_offsets(named, kept, caplog):
    reader = reader_naming(FakeBrokers(p0=10), {**named, "failOnDataLoss": "false"})
    start = {"events": {"0": 10, "1": 7}, "clicks": {"0": 3}}
    end = reader.latestOffset(start, ReadAllAvailable())
    assert (end, reader.partitions(start, end)) == (kept, [])
    assert "partition clicks-0 is gone: its next offset was 3" in caplog.text


@pytest.mark.parametrize("bounded", [False, True])
def test_a_topic_that_an_upgrade_names_is_waited_for_and_must_be_there(monkeypatch, bounded):
    fake, start = FakeBrokers(p0=10), {"events": {"0": 10}}
    named = {"subscribe": "events,clikcs"}

    def epoch(**options):
        reader = reader_naming(fake, {**named, **options})
        if bounded:
            reader.prepareForTriggerAvailableNow()
        return reader, reader.latestOffset(start, ReadAllAvailable())

    with pytest.raises(SourceFailure, match=r"user_error.*missing=\['clikcs'\]"):
        epoch()
    monkeypatch.setattr(time, "sleep", lambda _: fake.ends.update({("clikcs", 0): 7}))
    _, end = epoch(**{"kafkaConsumer.pollTimeoutMs": "30000"})
    assert end == {"clikcs": {"0": 7}, **start}


def test_a_topic_that_was_let_go_keeps_no_job_from_starting(monkeypatch, caplog):
    start = {"events": {"0": 10}}
    named = {"subscribe": "events,clicks", "failOnDataLoss": "false"}
    reader = reader_naming(FakeBrokers(p0=10), named)
    assert reader.latestOffset(start, ReadAllAvailable()) == start
    assert "nothing of clicks is there" in caplog.text
    caplog.clear()
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("waited again"))
    assert reader.latestOffset(start, ReadAllAvailable()) == start
    assert caplog.text == ""


def test_spark_4_1_waits_for_what_it_has_seen_and_at_first_for_what_is_named(monkeypatch):
    fake = FakeBrokers()
    patient = {"kafkaConsumer.pollTimeoutMs": "30000"}
    reader = reader_on(fake, **patient)
    monkeypatch.setattr(time, "sleep", lambda _: fake.ends.update({("events", 0): 7}))
    assert reader.latestOffset() == {"events": {"0": 7}}
    fake.ends["events", 1] = 3
    assert reader.latestOffset() == {"events": {"0": 7, "1": 3}}
    del fake.ends["events", 0]
    assert reader.latestOffset() == {"events": {"0": 7, "1": 3}}
    impatient = reader_on(fake)
    impatient.latestOffset()
    del fake.ends["events", 1]
    with pytest.raises(OffsetsLost, match="partition events-1 is gone: its next offset was 3"):
        impatient.latestOffset()


def test_a_bounded_run_waits_for_what_is_missing_when_it_begins(monkeypatch):
    fake = FakeBrokers()
    reader = reader_on(fake, **{"kafkaConsumer.pollTimeoutMs": "30000"})
    monkeypatch.setattr(time, "sleep", lambda _: fake.ends.update({("events", 0): 10}))
    reader.prepareForTriggerAvailableNow()
    monkeypatch.setattr(time, "sleep", lambda _: fake.ends.update({("events", 1): 7}))
    start = {"events": {"0": 5, "1": 5}}
    final = {"events": {"0": 10, "1": 7}}
    assert reader.latestOffset(start, ReadAllAvailable()) == final
    fake.ends.update({("events", 0): 99, ("events", 1): 99, ("events", 2): 99})
    assert reader.latestOffset(final, ReadAllAvailable()) == final


def test_a_bounded_run_ends_where_the_topics_ended_when_it_began():
    fake = FakeBrokers(p0=10)
    reader = reader_on(fake)
    reader.prepareForTriggerAvailableNow()
    fake.ends["events", 0] = 99
    assert reader.latestOffset({"events": {"0": 0}}, ReadAllAvailable()) == {"events": {"0": 10}}


# --- on mock brokers ------------------------------------------------------------------------------


def reader_of(kafka, topic, **options):
    base = {"kafka.bootstrap.servers": kafka.servers, "subscribe": topic}
    return KafkaReader(SourceOptions.parse({**base, "startingOffsets": "earliest", **options}))


def read(reader, topic, partition, start, end):
    sent = pickle.loads(pickle.dumps(reader))
    batches = sent.read(InputPartition(Slice(topic, partition, start, end)))
    return [row for batch in batches for row in batch.to_pylist()]


def test_records_come_with_the_columns_of_sparks_connector(kafka, topic):
    kafka.produce(topic, 1, b"v", key=b"k", timestamp=1_700_000_000_123)
    kafka.produce(topic, 1, b"w", headers=[("h", b"1"), ("h", None)])
    reader = reader_of(kafka, topic, includeHeaders="true")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    reader.stop()
    assert (start, end) == ({topic: {"0": 0, "1": 0}}, {topic: {"0": 0, "1": 2}})
    first, second = read(reader, topic, 1, 0, 2)
    assert first == {
        "key": b"k",
        "value": b"v",
        "topic": topic,
        "partition": 1,
        "offset": 0,
        "timestamp": datetime.datetime.fromtimestamp(1_700_000_000.123, datetime.UTC),
        "timestampType": 0,
        "headers": None,
    }
    assert (second["key"], second["offset"]) == (None, 1)
    assert second["headers"] == [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]


def test_a_slice_is_read_from_its_start_up_to_its_end_and_no_further(kafka, topic):
    kafka.produce(topic, 0, *[b"%d" % n for n in range(10)])
    rows = read(reader_of(kafka, topic), topic, 0, 3, 7)
    assert [row["value"] for row in rows] == [b"3", b"4", b"5", b"6"]


def test_what_lies_behind_the_last_record_of_a_transaction_is_no_record_and_not_waited_for(
    kafka, topic
):
    producer = Producer({"bootstrap.servers": kafka.servers, "transactional.id": topic})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(topic, b"one", partition=0)
    producer.commit_transaction()
    reader = reader_of(kafka, topic)
    end = reader.latestOffset({topic: {"0": 0}}, ReadAllAvailable())
    reader.stop()
    assert end[topic]["0"] == 2  # the record, and the mark of the commit
    rows = read(reader_of(kafka, topic, **{"kafkaConsumer.pollTimeoutMs": "5000"}), topic, 0, 0, 2)
    assert [row["value"] for row in rows] == [b"one"]


def test_records_that_are_deleted_fail_the_job_or_are_passed_over(kafka, topic):
    kafka.produce(topic, 0, *[b"x" * 90_000] * 100)  # the mock keeps 5 MB
    [oldest] = {row["offset"] for row in read_all(kafka, topic)[:1]}
    assert oldest > 0
    with pytest.raises(OffsetsLost, match=f"nothing at offset 0, .* the earliest is {oldest}"):
        read(reader_of(kafka, topic), topic, 0, 0, 100)
    rows = read(reader_of(kafka, topic, failOnDataLoss="false"), topic, 0, 0, 100)
    assert [row["offset"] for row in rows] == list(range(oldest, 100))
    assert read(reader_of(kafka, topic, failOnDataLoss="false"), topic, 0, 0, 5) == []


def read_all(kafka, topic):
    reader = reader_of(kafka, topic, failOnDataLoss="false")
    return read(reader, topic, 0, 0, 100)


def test_brokers_that_do_not_answer_are_tried_again_and_not_the_jobs_fault():
    options = {
        "kafka.bootstrap.servers": "127.0.0.1:1",
        "subscribe": "events",
        "kafkaConsumer.pollTimeoutMs": "200",
    }
    reader = KafkaReader(SourceOptions.parse(options))
    with pytest.raises(SourceFailure, match=r"\[moorage:retryable\] .*listing topics"):
        reader.latestOffset({"events": {"0": 0}}, ReadAllAvailable())
    reader.stop()
    with pytest.raises(SourceFailure, match=r"\[moorage:retryable\] kafka brought nothing in time"):
        read(reader, "events", 0, 0, 1)


def test_a_pattern_names_topics_as_a_whole(kafka, topic):
    kafka.create(f"{topic}-more", 1)
    options = {"kafka.bootstrap.servers": kafka.servers, "startingOffsets": "earliest"}
    one = KafkaReader(SourceOptions.parse({**options, "subscribePattern": topic}))
    two = KafkaReader(SourceOptions.parse({**options, "subscribePattern": topic + "(-more)?"}))
    assert sorted(one.initialOffset()) == [topic]
    assert sorted(two.initialOffset()) == sorted([topic, f"{topic}-more"])
    one.stop()
    two.stop()
