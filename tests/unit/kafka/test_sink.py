"""Kafka's sink: exactly once through crashes, drivers that wake up late, ways back and forward.

On a stand-in for the brokers that fences and keeps offsets; with MOORAGE_TEST_KAFKA=host:port the
same on real ones, where readers of committed records say what is there.
"""

import os
import pickle
import uuid

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from moorage_testing.fake_kafka import FakeKafka, lost_reply, must_abort

import moorage.kafka.transactions
from moorage import KafkaSink
from moorage.api.sinks import LiveOutput, SinkContext, SinkRestore, SinkRetire, StageId
from moorage.kafka.transactions import Ledger
from moorage_state import failpoints
from moorage_state.errors import (
    CorruptState,
    Fenced,
    NewerFormat,
    ObjectNotFound,
    Retryable,
    UserError,
)
from moorage_state.stores import open_store

SCHEMA = pa.schema([("value", pa.string())])
REAL = os.environ.get("MOORAGE_TEST_KAFKA", "")


class RealKafka:
    """A cluster that somebody runs."""

    servers = REAL

    def create(self, topic):
        admin = AdminClient({"bootstrap.servers": REAL})
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)

    def seen(self, topic):
        config = {"bootstrap.servers": REAL, "group.id": "reader", "enable.partition.eof": True}
        consumer = Consumer({**config, "isolation.level": "read_committed"})
        consumer.assign([TopicPartition(topic, 0, 0)])
        found = []
        while (message := consumer.poll(30)) is not None and message.error() is None:
            found.append(message.value().decode())
        assert message is not None, "no answer"
        assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
        consumer.close()
        return found


@pytest.fixture
def fake(monkeypatch):
    brokers = FakeKafka()
    monkeypatch.setattr(moorage.kafka.transactions, "library", lambda: brokers)
    return brokers


@pytest.fixture(
    params=[
        "a stand-in",
        pytest.param(
            "real brokers",
            marks=pytest.mark.skipif(not REAL, reason="MOORAGE_TEST_KAFKA names no broker"),
        ),
    ]
)
def brokers(request):
    return RealKafka() if request.param == "real brokers" else request.getfixturevalue("fake")


class Home:
    """A sink's lineage, and the drivers that run on it one after the other."""

    def __init__(self, brokers, store_url):
        self.brokers, self.store_url = brokers, store_url
        self.topic, self.lineage = f"t{uuid.uuid4().hex}", uuid.uuid4().hex[:8]
        brokers.create(self.topic)
        self.live = []

    def driver(self):
        sink = KafkaSink(self.topic, **{"kafka.bootstrap.servers": self.brokers.servers})
        return sink.bind(SinkContext("out", "", self.store_url, SCHEMA))

    def stage(self, sink, *values, epoch=1, run="f1r0"):
        sent = pickle.loads(pickle.dumps(sink))
        writer = sent.open_writer(StageId(self.lineage, run, epoch, "count", 0), SCHEMA)
        writer.write(pa.RecordBatch.from_pydict({"value": values}, schema=SCHEMA))
        return writer.finish()

    def completed(self, checkpoint, items, *before):
        """A checkpoint is in the log, so it can be restored."""
        self.live.append(LiveOutput((*before, checkpoint), items))

    def restore(self, sink, fence, history=(), items=(), **more):
        live = more.pop("live", tuple(self.live))
        point = SinkRestore(self.lineage, f"f{fence}r0", history, list(items), live, **more)
        return sink.restore(point)

    @property
    def seen(self):
        return self.brokers.seen(self.topic)


@pytest.fixture
def home(brokers, store_url):
    return Home(brokers, store_url)


@pytest.fixture
def faked(fake, store_url):
    return Home(fake, store_url)


def crash_at(patch, place):
    def hit(name):
        if name == place:
            raise InterruptedError(name)

    patch.setattr(failpoints, "hit", hit)


def test_a_checkpoint_is_published_once_however_often_it_is_asked_for(home):
    sink = home.driver()
    home.restore(sink, 1)
    items = home.stage(sink, "a", "b") + home.stage(sink, "c", epoch=2)
    assert [sink.publish(home.lineage, 7, items) for _ in range(2)] == [3, 3]
    assert home.seen == ["a", "b", "c"]


@pytest.mark.parametrize("place", ["sink.before_call", "sink.after_call", "sink.recorded"])
def test_a_driver_that_ends_anywhere_in_a_publication_is_followed_by_one_that_ends_it_once(
    home, monkeypatch, place
):
    sink = home.driver()
    home.restore(sink, 1)
    items = home.stage(sink, "a")
    home.completed(7, items)
    with monkeypatch.context() as patch:
        crash_at(patch, place)
        with pytest.raises(InterruptedError):
            sink.publish(home.lineage, 7, items)
    successor = home.driver()
    assert home.restore(successor, 2, (7,), items) == []
    more = home.stage(successor, "b", run="f2r0")
    successor.publish(home.lineage, 8, more)
    assert home.seen == ["a", "b"]


def test_what_kafka_committed_is_recorded_before_a_person_goes_elsewhere(home, monkeypatch):
    """A crash before the record, then back to an older checkpoint, on, and forward again."""
    sink = home.driver()
    home.restore(sink, 1)
    first = home.stage(sink, "a")
    home.completed(1, first)
    sink.publish(home.lineage, 1, first)
    second = home.stage(sink, "b", epoch=2)
    home.completed(2, second, 1)
    with monkeypatch.context() as patch:
        crash_at(patch, "sink.after_call")
        with pytest.raises(InterruptedError):
            sink.publish(home.lineage, 2, second)
    back = home.driver()
    [told] = home.restore(back, 2, (1,), first, left_behind=(2,))
    assert "OutputAlreadyPublished" in told
    assert "KafkaSink out" in told
    assert "chk-2" in told
    third = home.stage(back, "c", run="f2r0")
    home.completed(3, third, 1)
    back.publish(home.lineage, 3, third)
    forward = home.driver()
    home.restore(forward, 3, (1, 2), second)
    assert home.seen == ["a", "b", "c"]


def test_rows_are_not_published_while_kafka_may_have_them_with_a_checkpoint_that_cannot_be_read(
    home, monkeypatch, store_url
):
    """A savepoint, a checkpoint, a crash before its record, and back to the savepoint."""
    sink = home.driver()
    home.restore(sink, 1)
    first = home.stage(sink, "a")
    home.completed(1, first)
    sink.publish(home.lineage, 1, first)
    until_savepoint = home.stage(sink, "b", epoch=2)
    home.completed(2, until_savepoint, 1)
    until_checkpoint = [*until_savepoint, *home.stage(sink, "c", epoch=3)]
    home.completed(3, until_checkpoint, 1)
    with monkeypatch.context() as patch:
        crash_at(patch, "sink.after_call")
        with pytest.raises(InterruptedError):
            sink.publish(home.lineage, 3, until_checkpoint)
    back = home.driver()
    with pytest.raises(Retryable, match="published=chk-3 restore_point=2"):
        home.restore(back, 2, (1, 2), until_savepoint, live=None, left_behind=(3,))
    # Of the checkpoint before the savepoint all is published.
    onward = home.driver()
    home.restore(onward, 2, (1,), first, live=None, left_behind=(3,))
    # Golden: later releases look for it.
    mark = f"sinks/out/handed/{home.lineage}/00000000000000000003.unknown"
    assert open_store(store_url).get(mark) == b""
    # The job goes on, through an end before a publication, too.
    onward.publish(home.lineage, 4, home.stage(onward, "d", run="f2r0"))
    waiting = home.stage(onward, "e", epoch=2, run="f2r0")
    home.restore(home.driver(), 3, (1, 4, 5), waiting, live=None)
    assert home.seen == ["a", "b", "c", "d", "e"]
    # The savepoint waits, until it is known what the checkpoint covered.
    let_go = tuple(output for output in home.live if output.history[-1] != 3)
    for live in (None, let_go):
        with pytest.raises(Retryable, match="published=chk-3 restore_point=2"):
            home.restore(home.driver(), 4, (1, 2), until_savepoint, live=live)
    home.restore(home.driver(), 4, (1, 2), until_savepoint)
    with pytest.raises(ObjectNotFound):
        open_store(store_url).get(mark)
    home.restore(home.driver(), 5, (1, 2), until_savepoint, live=None)
    assert home.seen == ["a", "b", "c", "d", "e"]


def test_a_savepoint_is_not_published_again_once_the_checkpoint_after_it_can_be_read(
    home, monkeypatch
):
    sink = home.driver()
    home.restore(sink, 1)
    items = home.stage(sink, "a")
    home.completed(1, items)
    home.completed(2, items)
    with monkeypatch.context() as patch:
        crash_at(patch, "sink.after_call")
        with pytest.raises(InterruptedError):
            sink.publish(home.lineage, 2, items)
    back = home.driver()
    with pytest.raises(Retryable):
        home.restore(back, 2, (1,), items, live=None)
    home.restore(back, 2, (1,), items)
    assert home.seen == ["a"]


def test_a_driver_that_was_replaced_cannot_publish(home):
    old, new = home.driver(), home.driver()
    home.restore(old, 1)
    items = home.stage(old, "a")
    home.completed(7, items)
    home.restore(new, 2, (7,), items)
    late = home.stage(old, "late", epoch=2)
    with pytest.raises(Retryable, match="publishing to kafka failed"):
        old.publish(home.lineage, 8, late)
    new.publish(home.lineage, 9, home.stage(new, "b", run="f2r0"))
    assert home.seen == ["a", "b"]


def test_a_driver_that_wakes_up_in_its_start_after_another_published_is_shut_out(home):
    old, new = home.driver(), home.driver()
    home.restore(old, 1)
    items = home.stage(old, "a")
    home.completed(7, items)
    home.restore(new, 3, (7,), items)
    with pytest.raises(Fenced, match="fence=2 found=3"):
        home.restore(home.driver(), 2, (7,), items)
    assert home.seen == ["a"]
    # The one that goes on was shut out by the question, and its next run is not.
    more = home.stage(new, "b", run="f3r0")
    home.completed(8, more, 7)
    with pytest.raises(Retryable):
        new.publish(home.lineage, 8, more)
    home.restore(new, 3, (7, 8), more)
    assert home.seen == ["a", "b"]


def test_lineages_and_sinks_do_not_know_each_other(home):
    sink = home.driver()
    home.restore(sink, 1)
    sink.publish(home.lineage, 7, home.stage(sink, "a"))
    home.lineage = uuid.uuid4().hex[:8]
    home.restore(sink, 1)
    sink.publish(home.lineage, 7, home.stage(sink, "b"))
    assert home.seen == ["a", "b"]


def test_readers_see_nothing_of_a_transaction_that_was_given_up(home, store_url):
    sink = home.driver()
    home.restore(sink, 1)
    items = home.stage(sink, "a") + home.stage(sink, "b", epoch=2)
    kept = open_store(store_url).get(key := f"sinks/out/staged/{home.lineage}/{items[1]['file']}")
    open_store(store_url).delete(key)
    with pytest.raises(CorruptState, match="rows that the checkpoint covers are missing"):
        sink.publish(home.lineage, 7, items)
    assert home.seen == []
    # Put back as the error says, they come once.
    open_store(store_url).put(key, kept)
    home.restore(sink, 1, (7,), items)
    assert home.seen == ["a", "b"]


# --- what only the stand-in can do: replies that are lost, errors at a place ----------------------


@pytest.mark.parametrize("applied", [True, False])
def test_a_commit_without_an_answer_is_asked_for_again(faked, fake, applied):
    sink = faked.driver()
    faked.restore(sink, 1)
    fake.once(fake.after if applied else fake.before, "commit", lost_reply())
    sink.publish(faked.lineage, 7, faked.stage(sink, "a"))
    assert faked.seen == ["a"]


@pytest.mark.parametrize("call", ["produce", "offsets", "commit"])
@pytest.mark.parametrize("applied", [True, False])
def test_after_an_error_the_next_run_finds_out_what_happened(faked, fake, call, applied):
    sink = faked.driver()
    faked.restore(sink, 1)
    items = faked.stage(sink, "a", "b")
    faked.completed(7, items)
    fake.once(fake.after if applied else fake.before, call, must_abort())
    # Whether or not it can be aborted: what is open is settled by the next to begin.
    fake.once(fake.before, "abort", lost_reply())
    with pytest.raises(Retryable, match=r"publishing to kafka failed: .*checkpoint=7"):
        sink.publish(faked.lineage, 7, items)
    faked.restore(sink, 1, (7,), items)
    assert faked.seen == ["a", "b"]


def test_a_publication_beyond_its_time_says_which_option_to_raise(faked, fake):
    sink = faked.driver()
    faked.restore(sink, 1)
    times = iter([0.0, 700.0, 700.0])
    sink._transactions._clock = lambda: next(times)
    fake.once(fake.before, "commit", must_abort(KafkaError.INVALID_PRODUCER_EPOCH))
    with pytest.raises(UserError, match=r"seconds=700 limit=600; raise kafka.transaction.timeout"):
        sink.publish(faked.lineage, 7, faked.stage(sink, "a"))


@pytest.mark.parametrize(
    "code", [KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.TOPIC_AUTHORIZATION_FAILED]
)
def test_what_another_try_would_not_mend_is_for_a_person(faked, fake, code):
    sink = faked.driver()
    faked.restore(sink, 1)
    fake.once(fake.before, "produce", must_abort(code))
    with pytest.raises(UserError, match="publishing to kafka failed"):
        sink.publish(faked.lineage, 7, faked.stage(sink, "a"))


def test_the_ledger_is_an_offset_with_the_checkpoints_id(faked, fake):
    sink = faked.driver()
    faked.restore(sink, 4)
    sink.publish(faked.lineage, 7, faked.stage(sink, "a"))
    [(group, kept)] = fake.offsets.items()
    assert group == f"moorage-{faked.lineage}-out"
    [at] = kept.values()
    assert (at.topic, at.partition, at.offset) == (faked.topic, 0, 7)
    # Golden: later releases read it.
    assert at.metadata == '{"format": 1, "fence": 4, "checkpoint": 7}'


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", UserError),
        ("{}", UserError),
        ('{"format": 2}', NewerFormat),
        ('{"format": 1, "fence": 1, "checkpoint": 1, "more": 1}', NewerFormat),
    ],
)
def test_a_ledger_that_is_not_the_sinks_is_told(text, kind):
    with pytest.raises(kind):
        Ledger.from_text(text, "group=g")


def test_old_records_and_rows_are_forgotten_as_those_of_functions_are(faked):
    sink = faked.driver()
    faked.restore(sink, 1)
    items = faked.stage(sink, "a")
    sink.publish(faked.lineage, 7, items)
    sink.retire(SinkRetire(faked.lineage, "f1r0", 9, 8, (LiveOutput((8,), []),)))
    assert sink._handed(faked.lineage) == {}


def test_secrets_stay_on_the_driver(faked):
    options = {"kafka.bootstrap.servers": "a:1", "kafka.sasl.password": "hunter2"}
    sink = KafkaSink("t", **options).bind(SinkContext("out", "", faked.store_url, SCHEMA))
    assert b"hunter2" not in pickle.dumps(sink)


# --- what people may say --------------------------------------------------------------------------

SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:1"}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: KafkaSink(**SERVERS), "needs a topic for its own offset"),
        (lambda: KafkaSink("t"), "no kafka broker is named"),
        (lambda: KafkaSink("t", acks="1", **SERVERS), r"no such option: unknown=\['acks'\]"),
        (
            lambda: KafkaSink("t", **SERVERS, **{"kafka.transactional.id": "x"}),
            r"refused=\['kafka.transactional.id'\]",
        ),
    ],
)
def test_options_that_cannot_be_are_refused(make, said):
    with pytest.raises(UserError, match=said):
        make()


HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.mark.parametrize(
    ("topic", "columns", "said"),
    [
        ("t", {"key": pa.string()}, r"missing=\['value'\]"),
        ("t", {"value": pa.string(), "n": pa.int64()}, r"unknown=\['n'\]"),
        ("t", {"value": pa.int64()}, "column=value type=int64 needed=a string or binary"),
        ("t", {"value": pa.string(), "topic": pa.string()}, "leave one out"),
        ("t", {"value": pa.string(), "headers": pa.string()}, "column=headers type=string"),
        (None, {"value": pa.string()}, r"missing=\['topic'\]"),
        ("t", {"value": pa.binary(), "headers": HEADERS, "partition": pa.int32()}, None),
        (None, {"value": pa.binary(), "topic": pa.string(), "key": pa.binary()}, None),
    ],
)
def test_columns_are_those_of_sparks_connector(topic, columns, said, store_url):
    sink = KafkaSink(topic, ledger_topic="ledger", **SERVERS)
    context = SinkContext("out", "", store_url, pa.schema(columns.items()))
    if said is None:
        assert sink.bind(context).topic == topic
        return
    with pytest.raises(UserError, match=said):
        sink.bind(context)


def test_options_that_the_client_refuses_are_told_when_the_job_is_described(store_url):
    sink = KafkaSink("t", **SERVERS, **{"kafka.bogus": "1"})
    with pytest.raises(UserError, match='No such configuration property: "bogus"'):
        sink.bind(SinkContext("out", "", store_url, SCHEMA))
