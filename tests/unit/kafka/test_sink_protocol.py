"""Kafka's sink against sockets: librdkafka's mock brokers, and errors that they answer with.

They keep no offset that a transaction commits and shut nobody out; for that see test_sink.py.
"""

import pyarrow as pa
import pytest

from moorage.kafka.transactions import Transactions, transactional_id
from moorage_state.errors import Retryable, UserError

PAIRS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
ROWS = pa.table(
    {
        "value": pa.array(["one", None], pa.string()),
        "key": pa.array([b"k", None], pa.binary()),
        "partition": pa.array([1, 1], pa.int32()),
        "headers": pa.array([[{"key": "h", "value": b"1"}], None], PAIRS),
    }
)


@pytest.fixture
def publisher(kafka, topic):
    config = {"bootstrap.servers": kafka.servers}
    made = Transactions(config, transactional_id("0f3c", topic), topic, 1)
    yield made
    made.close()


def test_rows_become_records_with_key_partition_and_headers(kafka, topic, publisher):
    publisher.publish(7, iter([ROWS, ROWS.slice(0, 1)]), topic)
    records = kafka.records(topic, 1)
    assert [(r.key(), r.value()) for r in records] == [
        (b"k", b"one"),
        (None, None),
        (b"k", b"one"),
    ]
    assert [r.headers() for r in records] == [[("h", b"1")], None, [("h", b"1")]]
    assert kafka.records(topic, 0) == []


def test_a_column_may_name_the_topic(kafka, topic, publisher):
    rows = pa.table({"value": ["a", "b"], "topic": pa.array([topic, None], pa.string())})
    publisher.publish(7, iter([rows.slice(0, 1)]), None)
    assert len(kafka.records(topic, 0) + kafka.records(topic, 1)) == 1
    with pytest.raises(UserError, match="a row names no topic"):
        publisher.publish(8, iter([rows]), None)


def test_a_key_goes_to_the_partition_that_javas_clients_choose(kafka, topic, publisher):
    keys = ["21", "foobar", "abc"]  # murmur2 as java's clients compute it: golden
    publisher.publish(7, iter([pa.table({"value": keys, "key": keys})]), topic)
    found = {r.value().decode(): p for p in (0, 1) for r in kafka.records(topic, p)}
    assert found == {key: (murmur2(key.encode()) & 0x7FFFFFFF) % 2 for key in keys}


def murmur2(data):
    """Kafka's, as its clients have it."""
    mask, m, length = 0xFFFFFFFF, 0x5BD1E995, len(data)
    h = 0x9747B28C ^ length
    for i in range(0, length - length % 4, 4):
        k = int.from_bytes(data[i : i + 4], "little") * m & mask
        h = (h * m & mask) ^ ((k ^ k >> 24) * m & mask)
    if rest := data[length - length % 4 :]:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


@pytest.mark.parametrize(
    ("request_name", "code", "kind"),
    [
        ("Produce", 10, UserError),  # MSG_SIZE_TOO_LARGE
        ("Produce", 29, UserError),  # TOPIC_AUTHORIZATION_FAILED
        ("Produce", 47, Retryable),  # INVALID_PRODUCER_EPOCH
        ("AddOffsetsToTxn", 53, UserError),  # TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        ("EndTxn", 90, Retryable),  # PRODUCER_FENCED
        ("EndTxn", 47, Retryable),
    ],
)
def test_errors_of_brokers_are_told_apart(kafka, topic, publisher, request_name, code, kind):
    kafka.fail(request_name, code)
    with pytest.raises(kind, match=r"publishing to kafka failed: .*checkpoint=7") as told:
        publisher.publish(7, iter([ROWS]), topic)
    assert type(told.value) is kind


def test_errors_that_pass_are_waited_for(kafka, topic, publisher):
    kafka.fail("EndTxn", 14, 15)  # COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE
    publisher.publish(7, iter([ROWS]), topic)
    assert publisher.ledger is not None
    assert publisher.ledger.checkpoint == 7


@pytest.mark.parametrize(("code", "kind"), [(53, UserError), (50, UserError)])
def test_who_may_not_begin_is_told_so(kafka, topic, code, kind):
    kafka.fail("InitProducerId", code)
    with pytest.raises(kind, match="beginning: moorage-0f3c-"):
        Transactions({"bootstrap.servers": kafka.servers}, f"moorage-0f3c-{topic}", topic, 1)
