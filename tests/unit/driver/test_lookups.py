"""Look-ups in the state of a job: its ranges on real state servers, its epochs by hand."""

import datetime
import threading
from contextlib import closing
from decimal import Decimal
from itertools import groupby

import pytest

from moorage.driver.local import LocalServers
from moorage.driver.lookup_requests import (
    MOST_BYTES,
    BadLookup,
    LookupRequest,
    from_json,
    from_query,
)
from moorage.driver.lookups import (
    JobNotRunning,
    LookupDone,
    LookupSource,
    StateLookups,
    StateMoving,
)
from moorage.driver.requests import TooManyRequests
from moorage.engine.acks import Ack, EpochOutcome
from moorage.engine.fleet import RangeFleet
from moorage.engine.kv_states import KvStateLocationRegistry, NoKvStatesYet, UnknownKvState
from moorage.engine.range_access import BoundRange, connect_to
from moorage.offline.value_text import parse_key, typed_key_reader
from moorage.queryable import QueryableStateClient
from moorage_state.canonical.hashing import key_groups
from moorage_state.descriptors import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from moorage_state.errors import UserError
from moorage_state.formats import read_json
from moorage_state.keyed import KeyedStateStore
from moorage_state.keygroups import SPARK_XXHASH64, owner
from moorage_state.keylayout import key_prefix
from moorage_state.keys import KeyCodec
from moorage_state.rocks import RocksOptions
from moorage_state.server import ServerGroup
from moorage_state.server.exchange import exchange
from moorage_state.state_backends import EmbeddedRocksDBStateBackend
from moorage_state.timetolive import StateTtlConfig

GROUPS = 16
MIB = 1 << 20
SMALL = EmbeddedRocksDBStateBackend(
    tuned=RocksOptions(
        block_cache_bytes=16 * MIB, write_buffers_bytes=16 * MIB, write_buffer_bytes=MIB
    )
)
DAY_MS = 86_400_000
NOW = 20_000 * DAY_MS


class Mean(AggregateFunction):
    def create_accumulator(self):
        return (0.0, 0)

    def add(self, value, accumulator):
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator):
        return accumulator[0] / accumulator[1]


COUNT = ValueStateDescriptor("count", "long").queryable("counts")
PAGES = ListStateDescriptor("pages", "string").queryable("pages")
SPENT = MapStateDescriptor("spent", "string", "decimal(10,2)").queryable("spent")
LONGEST = ReducingStateDescriptor("longest", "long", "max").queryable("longest")
MEAN = AggregatingStateDescriptor("mean", "sum double, n long", Mean()).queryable("means")
WINDOWS = ValueStateDescriptor("windows", "long").queryable("windows")
WINDOW_MAPS = MapStateDescriptor("window_maps", "string", "long").queryable("window_maps")
SEEN = ValueStateDescriptor(
    "seen", "timestamp", ttl=StateTtlConfig(datetime.timedelta(days=1))
).queryable("seen")
PRICES = {name: Decimal(text) for name, text in (("food", "1.50"), ("fuel", "20"), ("rent", "3"))}
HIDDEN = ValueStateDescriptor("hidden", "long")


@pytest.fixture(scope="module")
def group(tmp_path_factory):
    with ServerGroup(2, tmp_path_factory.mktemp("lookups"), backend=SMALL) as servers:
        yield servers


class Job:
    """A job of two operators; `work(store, key)` writes what an epoch does for a key."""

    count = 0

    def __init__(self, group, store, parallelism=3, key_types=("string",)):
        Job.count += 1
        self.group, self.store = group, store
        self.uid, self.key_types = f"visits{Job.count}", key_types
        self.servers = LocalServers(group)
        self.states = KvStateLocationRegistry({self.uid: key_types})
        self.epoch, self.schemas, self.runs = 0, {}, 0
        self.scaled(parallelism)
        self.done: list[LookupDone] = []
        self.lookups = StateLookups(self.done.append, wait_seconds=60, wall_ms=lambda: self.wall)
        self.wall = NOW

    def scaled(self, parallelism):
        self.parallelism = parallelism
        self.fleet = RangeFleet(self.servers, [self.uid], parallelism, GROUPS, self.store)

    def source(self):
        return LookupSource(self.fleet, self.servers, self.states, SPARK_XXHASH64)

    def open(self, base=None):
        self.runs += 1
        checkpoint_id, self.epoch, handles = base or (0, 0, {})
        self.fleet.open(f"f{self.runs}r0", self.epoch, handles, checkpoint_id)

    def prepared(self, work, *keys):
        """Run an epoch up to its commit, which what is returned does."""
        groups = key_groups(self.key_types, GROUPS)(keys)
        acks, digests = {}, {}
        for subtask, leased in enumerate(self.fleet.leased(self.uid)):
            mine = [
                key_prefix(g, KeyCodec(self.key_types).encode(key))
                for key, g in zip(keys, groups, strict=True)
                if owner(g, self.parallelism, GROUPS) == subtask
            ]
            with closing(connect_to(leased.door, self.group.token)) as client:
                bound = BoundRange(client, leased, self.epoch + 1, "a")
                known = self.schemas.get(self.uid, ())
                store = KeyedStateStore(bound, self.epoch + 1, known, now_ms=self.wall)
                states = work(store)
                store.begin_chunk(mine)
                for at in range(len(mine)):
                    store.switch_to(at)
                    states()
                store.finish()
                digests[self.uid, subtask] = bound.prepare()
                ack = Ack(
                    uid=self.uid,
                    subtask=subtask,
                    run="r",
                    epoch=1,
                    schemas=store.schemas,
                    queryable=store.kv_states.names(),
                )
                acks[self.uid, subtask] = ack
        outcome = EpochOutcome(acks)

        def commit():
            self.schemas = {uid: tuple(some) for uid, some in outcome.schemas().items()}
            self.states.register(outcome.queryable(), self.schemas, self.wall)
            self.fleet.commit(self.epoch + 1, digests)
            self.epoch += 1

        return commit

    def run(self, work, *keys):
        self.prepared(work, *keys)()

    def checkpoint(self, checkpoint_id):
        self.fleet.snapshot(checkpoint_id)
        return checkpoint_id, self.epoch, self.fleet.upload(checkpoint_id, {}).handles

    def ask(self, name, *keys, **more):
        return self.look_up(LookupRequest(name, list(keys), **more))

    def look_up(self, request):
        return told(self.lookups.submit(request))

    def ask_in_vain(self, name, *keys, match=None):
        """What is not to be found now, however long it is waited for."""
        patient, self.lookups._wait_seconds = self.lookups._wait_seconds, 0.3
        with pytest.raises(StateMoving, match=match):
            self.ask(name, *keys)
        self.lookups._wait_seconds = patient

    def values(self, name, *keys, **more):
        return [r["value"] for r in self.ask(name, *keys, **more)["results"]]


def told(answer):
    """What a future gives, which must be what JSON has."""
    return read_json(answer.result(90))


class Here(QueryableStateClient):
    """A client that asks a job of this process."""

    def __init__(self, job):
        super().__init__("http://localhost", "")
        self.job = job

    def look_up(self, request):
        return self.job.look_up(request)


def test_many_long_keys_are_asked_for_in_questions_that_the_endpoint_takes():
    asked = []

    class Answering(QueryableStateClient):
        def look_up(self, request):
            asked.append(request)
            results = [{"value": key, "found": True, "next": None} for key in request.keys]
            return {"results": results, "byNamespace": False, "kind": "value"}

    keys = [f"{number:04}" + "ß" * 400 for number in range(1_200)]
    short = [str(number) for number in range(2_001)]
    with Answering("http://localhost", "") as client:
        assert client.get_many("n", keys) == keys
        assert max(len(request.to_json()) for request in asked) <= MOST_BYTES
        asked.clear()
        assert client.get_many("n", short) == short
        assert [len(request.keys) for request in asked] == [1_000, 1_000, 1]
        assert client.get_many("n", []) == []


def test_half_a_character_in_a_key_is_a_mistake_of_who_asks():
    with QueryableStateClient("http://127.0.0.1:1", "t") as client:
        for keys in (["\ud800"], ["a", "\ud800"]):
            with pytest.raises(UserError, match="write it in UTF-8"):
                client.get_many("n", keys)


@pytest.fixture
def job(group, tmp_path):
    (tmp_path / "store").mkdir()
    made = Job(group, f"file://{tmp_path}/store")
    made.open()
    with made.lookups.serving(made.source()):
        yield made
    made.fleet.close()


def counting(value):
    def work(store):
        state = store.value_state(COUNT)
        return lambda: state.update(value)

    return work


def everything(store):
    """Some state of every kind, for each key."""
    count, pages, spent = (
        store.value_state(COUNT),
        store.list_state(PAGES),
        store.map_state(SPENT),
    )
    longest, mean = store.reducing_state(LONGEST), store.aggregating_state(MEAN)
    windows = store.namespaced_state(WINDOWS, ["long", "string"])
    maps = store.namespaced_state(WINDOW_MAPS, ["long"])
    seen, hidden = store.value_state(SEEN), store.value_state(HIDDEN)

    def write():
        count.update(7)
        pages.add_all(["a", "b"])
        spent.put_all(PRICES)
        longest.add_all([3, 9, 4])
        mean.add_all([1.0, 2.0])
        windows.set_current_namespace((1, "eu")).update(10)
        windows.set_current_namespace((2, "us")).update(20)
        for start, entries in ((0, {"x": 1, "y": 2}), (60, {"x": 3})):
            maps.set_current_namespace(start).put_all(entries)
        seen.update(datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC))
        hidden.update(1)

    return write


def test_every_kind_of_state_is_found_as_state_get_shows_it(job):
    job.run(everything, ("ann",), ("ben",))
    found = job.ask("counts", "ann", "none", "ben")
    assert (found["uid"], found["state"], found["kind"]) == (job.uid, "count", "value")
    assert [(r["found"], r["value"]) for r in found["results"]] == [
        (True, 7),
        (False, None),
        (True, 7),
    ]
    assert found["results"][0]["key"] == ["ann"]
    assert found["results"][0]["epoch"] == 1
    assert job.values("pages", "ann") == [["a", "b"]]
    assert job.values("longest", "ann") == [9]
    assert job.values("means", "ann") == [{"sum": 3.0, "n": 2}]
    assert job.values("spent", "ann") == [
        [{"key": k, "value": v} for k, v in (("food", "1.50"), ("fuel", "20.00"), ("rent", "3.00"))]
    ]
    assert job.values("spent", "ann", map_key="fuel") == [[{"key": "fuel", "value": "20.00"}]]
    assert job.values("spent", "ann", map_key="gas") == [None]
    (some,) = job.values("spent", "ann", map_key_prefix="f")
    assert [entry["key"] for entry in some] == ["food", "fuel"]
    assert job.values("seen", "ben") == ["2026-01-02T03:04:05Z"]


@pytest.mark.parametrize("name", ["a", "a b", "ä", 'a"b', "a\\b", "class"])
def test_the_fields_of_a_struct_are_shown_by_their_names(job, name):
    rows = ValueStateDescriptor("rows", f"struct<`{name}`:bigint, other:string>").queryable("rows")
    job.run(lambda store: lambda: store.value_state(rows).update((5, None)), ("ann",))
    assert job.values("rows", "ann") == [{name: 5, "other": None}]


def test_windows_are_found_all_together_or_by_their_name(job):
    job.run(everything, ("ann",))
    found = job.ask("windows", "ann")
    assert found["byNamespace"]
    assert found["results"][0]["value"] == [
        {"namespace": [1, "eu"], "value": 10},
        {"namespace": [2, "us"], "value": 20},
    ]
    assert job.values("windows", "ann", namespace=[2, "us"]) == [20]
    assert not job.ask("windows", "ann", namespace=[2, "us"])["byNamespace"]
    entries = [{"key": "x", "value": 1}, {"key": "y", "value": 2}]
    assert job.values("window_maps", "ann", namespace=0) == [entries]
    assert job.values("window_maps", "ann", namespace=0, map_key="y") == [[entries[1]]]
    assert job.values("window_maps", "ann") == [
        [
            {"namespace": [0], "value": entries},
            {"namespace": [60], "value": [{"key": "x", "value": 3}]},
        ]
    ]


def test_an_epoch_that_is_prepared_and_not_committed_is_not_seen(job):
    job.run(counting(1), ("ann",))
    commit = job.prepared(counting(2), ("ann",), ("ben",))
    assert job.values("counts", "ann", "ben") == [1, None]
    commit()
    assert job.values("counts", "ann", "ben") == [2, 2]
    assert [r["epoch"] for r in job.ask("counts", "ann", "ben")["results"]] == [2, 2]


def test_many_keys_go_to_their_owners_with_one_message_for_each_server(group, tmp_path):
    asked = []

    def counted(calls, **more):
        asked.append({index: len(some) for index, (_, some) in calls.items()})
        return exchange(calls, **more)

    job = Job(group, f"file://{tmp_path}", parallelism=5)
    job.lookups = StateLookups(exchange=counted)
    job.open()
    keys = [f"user-{n}" for n in range(1000)]
    with closing(job.fleet), job.lookups.serving(job.source()):
        job.run(counting(3), *[(key,) for key in keys])
        assert job.values("counts", *reversed(keys)) == [3] * 1000
    (calls,) = asked
    assert sorted(calls) == [0, 1]
    assert sum(calls.values()) == 5


def test_state_whose_time_is_over_is_not_found_though_no_epoch_came(job):
    job.run(everything, ("ann",))
    job.wall = NOW + DAY_MS - 1
    assert job.ask("seen", "ann")["results"][0]["found"]
    job.wall = NOW + DAY_MS
    assert not job.ask("seen", "ann")["results"][0]["found"]
    # A clock that goes back brings nothing back: processing time does not.
    job.run(counting(1), ("ann",))
    job.wall = NOW
    assert not job.ask("seen", "ann")["results"][0]["found"]


def test_a_long_list_comes_in_pages_and_the_client_puts_them_together(job):
    def many(store):
        pages, count = store.list_state(PAGES), store.value_state(COUNT)

        def write():
            count.update(1)
            pages.add_all([f"p{n}" for n in range(2500)])

        return write

    job.run(many, ("ann",))
    (first,) = job.ask("pages", "ann", limit=1000)["results"]
    assert len(first["value"]) == 1000
    (second,) = job.ask("pages", "ann", limit=1000, after=first["next"])["results"]
    assert second["value"][0] == "p1000"
    client = Here(job)
    whole = client.whole(LookupRequest("pages", ["ann"], limit=700))["results"][0]
    assert whole["value"] == [f"p{n}" for n in range(2500)]
    assert list(client.entries("pages", "ann", page=999)) == whole["value"]


def test_a_namespace_that_is_on_several_pages_is_one_entry():
    stored = [(start, n) for start, size in ((0, 25), (60, 1), (120, 4)) for n in range(size)]

    class Paged(QueryableStateClient):
        def look_up(self, request):
            begin = int(request.after or 0)
            end = begin + request.limit
            value = []
            for start, some in groupby(stored[begin:end], key=lambda one: one[0]):
                value.append({"namespace": [start], "value": [n for _, n in some]})
            after = str(end) if end < len(stored) else None
            results = [{"value": value, "found": True, "next": after, "epoch": 1}]
            return {"results": results, "byNamespace": True, "kind": "list"}

    with Paged("http://localhost", "") as client:
        for page in (1, 7, 25, 26, 29, 100):
            found = list(client.entries("windows", "ann", page=page))
            assert [(one["namespace"], len(one["value"])) for one in found] == [
                ([0], 25),
                ([60], 1),
                ([120], 4),
            ]
            whole = client.whole(LookupRequest("windows", ["ann"], limit=page))
            assert whole["results"][0]["value"] == found


def test_what_finds_no_room_in_an_answer_is_asked_for_again_by_the_client(job):
    texts = ValueStateDescriptor("texts", "string").queryable("texts")

    def large(store):
        state = store.value_state(texts)
        return lambda: state.update("x" * 400_000)

    keys = [f"user-{n}" for n in range(60)]
    job.run(large, *[(key,) for key in keys])
    results = job.ask("texts", *keys)["results"]
    assert {r["found"] for r in results} == {True, None}
    client = Here(job)
    assert {len(text) for text in client.get_many("texts", keys)} == {400_000}


def test_after_a_rewind_the_state_of_the_restore_point_is_found(job):
    job.run(counting(1), ("ann",))
    base = job.checkpoint(1)
    job.run(counting(2), ("ann",))
    assert job.values("counts", "ann") == [2]
    job.open(base)
    assert job.values("counts", "ann") == [1]


def test_a_look_up_that_meets_a_rewind_waits_for_its_end(job):
    job.run(counting(1), ("ann",))
    base = job.checkpoint(1)
    places, job.fleet.places = job.fleet.places, None
    found = job.lookups.submit(LookupRequest("counts", ["ann"]))
    # The leases of the run before are stale from here on, and an answer by them would be refused.
    job.fleet.places = places
    job.open(base)
    assert told(found)["results"][0]["value"] == 1


def test_where_ranges_do_not_come_to_rest_it_says_what_to_do(job):
    job.run(counting(1), ("ann",))
    job.fleet.places = None
    job.ask_in_vain("counts", "ann", match="ask again in a few seconds")
    assert job.done[-1].result == "unavailable"


def test_leases_of_a_run_that_was_shut_out_give_no_answer(job):
    job.run(counting(1), ("ann",))
    old = job.fleet.places
    job.open(job.checkpoint(1))
    job.fleet.places = old
    job.ask_in_vain("counts", "ann", match="the range is not open for this run")


@pytest.mark.parametrize("parallelism", [1, 2, 7])
def test_after_another_parallelism_every_key_is_found_at_its_new_owner(job, parallelism):
    keys = [f"user-{n}" for n in range(200)]
    job.run(counting(5), *[(key,) for key in keys])
    base = job.checkpoint(1)
    job.scaled(parallelism)
    job.open(base)
    with job.lookups.serving(job.source()):
        assert job.values("counts", *keys) == [5] * 200


@pytest.mark.parametrize("parallelism", [1, 2, 7])
def test_while_parallelism_changes_without_a_restart_no_key_seems_to_have_nothing(job, parallelism):
    keys = [f"user-{n}" for n in range(200)]
    job.run(counting(5), *[(key,) for key in keys])
    base = job.checkpoint(1)
    job.fleet.resize(parallelism)
    job.ask_in_vain("counts", *keys)
    waiting = job.lookups.submit(LookupRequest("counts", keys))
    job.open(base)
    assert [r["value"] for r in told(waiting)["results"]] == [5] * 200


def test_a_state_server_that_is_restarted_is_connected_to_anew(job, group):
    job.run(counting(1), ("ann",))
    assert job.values("counts", "ann") == [1]
    for index, pid in enumerate(group.pids):
        group.kill(index, pid)
    job.ask_in_vain("counts", "ann")
    job.fleet.recover()
    assert job.values("counts", "ann") == [1]


def test_look_ups_one_after_the_other_share_connections_though_not_a_thread(job):
    both, threads, used = threading.Barrier(2), set(), []

    def asked(clients, **how):
        threads.add(threading.get_ident())
        used.append({id(client) for client, _ in clients.values()})
        if len(used) <= both.parties:
            both.wait(30)
        return exchange(clients, **how)

    job.run(counting(1), ("ann",))
    lookups = StateLookups(exchange=asked)
    with lookups.serving(job.source()):

        def ask():
            return lookups.submit(LookupRequest("counts", ["ann"]))

        for one in [ask() for _ in range(both.parties)]:
            told(one)
        assert used[0] != used[1]
        for _ in range(8):
            told(ask())
    assert len(threads) == both.parties
    assert used[both.parties :] == [used[-1]] * 8


def test_connections_that_come_back_after_the_job_has_ended_are_closed(job):
    asked, go_on, closed = threading.Event(), threading.Event(), []
    connect = job.servers.connect

    def late(index):
        asked.set()
        assert go_on.wait(30)
        client = connect(index)
        close = client.close

        def noted():
            closed.append(index)
            close()

        client.close = noted
        return client

    job.run(counting(1), ("ann",))
    job.servers.connect = late
    lookups = StateLookups()
    with lookups.serving(job.source()):
        answer = lookups.submit(LookupRequest("counts", ["ann"]))
        assert asked.wait(30)
        pool = lookups._pool
    go_on.set()
    with pytest.raises(JobNotRunning):
        answer.result(30)
    assert pool
    pool.shutdown(wait=True)
    assert closed
    assert not lookups._idle


def test_look_ups_that_wait_for_a_state_server_hold_up_no_others(job, group):
    keys = [f"user-{n}" for n in range(20)]
    job.run(counting(1), *[(key,) for key in keys])
    groups = key_groups(job.key_types, GROUPS)([(key,) for key in keys])
    servers = [job.fleet.places.of(job.uid, g)[0] for g in groups]
    lost, kept = keys[servers.index(0)], keys[servers.index(1)]
    group.kill(0, group.pids[0])
    waiting = [job.lookups.submit(LookupRequest("counts", [lost])) for _ in range(8)]
    assert job.ask("counts", kept)["results"][0]["found"]
    assert not any(one.done() for one in waiting)
    job.fleet.recover()
    assert [told(one)["results"][0]["value"] for one in waiting] == [1] * 8


def test_look_ups_that_wait_hear_that_the_job_has_ended(job):
    job.run(counting(1), ("ann",))
    job.fleet.places = None
    with job.lookups.serving(job.source()):
        waiting = job.lookups.submit(LookupRequest("counts", ["ann"]))
    with pytest.raises((JobNotRunning, StateMoving)):
        waiting.result(10)


def test_keys_of_several_columns_are_arrays(group, tmp_path):
    job = Job(group, f"file://{tmp_path}", key_types=("string", "bigint", "date"))
    job.open()
    with closing(job.fleet), job.lookups.serving(job.source()):
        job.run(counting(4), ("LGA", 42, datetime.date(2026, 1, 2)))
        assert job.values("counts", ["LGA", 42, "2026-01-02"]) == [4]
        assert job.values("counts", '["LGA", "42", "2026-01-02"]', typed=True) == [4]
        with pytest.raises(UserError, match="another number of columns"):
            job.ask("counts", "LGA")


@pytest.mark.parametrize(
    ("name", "keys", "more", "problem"),
    [
        ("counts", [7], {}, "key is not of its type"),
        ("counts", ["ann", None], {}, "key is not of its type"),
        ("counts", ["ann"], {"map_key": "x"}, "state is no map"),
        ("counts", ["ann"], {"namespace": 1}, "state has no namespaces"),
        ("counts", ["ann"], {"after": "AAAA"}, "with one key, whose list, map"),
        ("pages", ["ann"], {"after": "!"}, "not a place to go on after"),
        ("pages", ["ann", "ben"], {"after": "AAAA"}, "with one key"),
        ("windows", ["ann"], {"namespace": ["x", "eu"]}, "key is not of its type"),
        ("window_maps", ["ann"], {"map_key": "x"}, "name the namespace, too"),
    ],
)
def test_questions_that_are_wrong_are_refused(job, name, keys, more, problem):
    job.run(everything, ("ann",))
    with pytest.raises(UserError, match=problem):
        job.ask(name, *keys, **more)
    assert job.done[-1].result == "refused"


def test_a_name_that_is_not_there_is_refused_with_those_that_are(job):
    with pytest.raises(NoKvStatesYet, match="no epoch of this driver"):
        job.ask("counts", "ann")
    job.run(counting(1), ("ann",))
    with pytest.raises(UnknownKvState, match="queryable=count; there are: counts"):
        job.ask("count", "ann")
    job.run(everything, ("ann",))
    with pytest.raises(UnknownKvState, match="hidden"):
        job.ask("hidden", "ann")


def test_two_states_of_one_name_are_refused_before_the_epoch_is_committed():
    one = Ack(uid="a", subtask=0, run="r", epoch=1, queryable={"counts": "n"})
    two = Ack(uid="b", subtask=0, run="r", epoch=1, queryable={"counts": "n"})
    outcome = EpochOutcome({("a", 0): one, ("b", 0): two})
    with pytest.raises(UserError, match="queryable=counts state=a/n and state=b/n"):
        outcome.queryable()


def test_a_name_stays_that_of_its_state_also_if_only_some_epochs_ask_for_it(job):
    job.run(counting(1), ("ann",))
    job.run(lambda store: lambda: store.value_state(HIDDEN).update(1), ("ann",))
    assert job.values("counts", "ann") == [1]
    other = ValueStateDescriptor("other", "long").queryable("counts")
    with pytest.raises(UserError, match="two states of the job are queryable by one name"):
        job.run(lambda store: lambda: store.value_state(other).update(1), ("ann",))


def test_without_a_job_there_is_no_answer(job):
    lookups = StateLookups()
    with pytest.raises(JobNotRunning, match="the job is not running"):
        lookups.submit(LookupRequest("counts", ["ann"])).result(10)
    with lookups.serving(job.source()):
        pass
    with pytest.raises(JobNotRunning):
        lookups.submit(LookupRequest("counts", ["ann"])).result(10)


def test_no_more_look_ups_wait_than_soon_have_their_turn(job):
    gate = threading.Event()
    step = job.lookups._step
    job.lookups._step = lambda asked: gate.wait(30) and step(asked)
    job.run(counting(1), ("ann",))
    waiting = [job.lookups.submit(LookupRequest("counts", ["ann"])) for _ in range(64)]
    with pytest.raises(TooManyRequests, match="ask for more keys at once"):
        job.lookups.submit(LookupRequest("counts", ["ann"]))
    gate.set()
    assert {told(f)["results"][0]["value"] for f in waiting} == {1}
    assert job.lookups.submit(LookupRequest("counts", ["ann"])).result(30)


def test_questions_are_read_from_json_and_from_a_query():
    body = b'{"keys": ["a", 1.50], "mapKey": 3, "limit": 7}'
    assert from_json("n", body) == LookupRequest("n", ["a", Decimal("1.50")], map_key=3, limit=7)
    request = LookupRequest("n", ["a"], namespace=[1, "eu"], after="AA==")
    assert from_json("n", request.to_json()) == request
    query = [("key", "a"), ("key", "b"), ("mapKeyPrefix", "f"), ("limit", "2")]
    assert from_query("n", query) == LookupRequest("n", ["a", "b"], True, None, "f", limit=2)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "the body is not as it must be"),
        (b'{"keys": "a"}', "keys"),
        (b'{"keys": []}', "1 to 1000 keys"),
        (b'{"keys": ["a"], "limit": 0}', "limit is from 1"),
        (b'{"keys": ["a"], "mapkey": 1}', "mapkey"),
        (b'{"keys": ["a"], "mapKey": 1, "mapKeyPrefix": "x"}', "not both"),
        (b'{"keys": ["\xff"]}', "not as it must be"),
        (b'{"keys": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "not as it must be"),
    ],
)
def test_bodies_that_are_wrong_are_refused(body, problem):
    with pytest.raises(BadLookup, match=problem):
        from_json("n", body)


@pytest.mark.parametrize("query", [[("keys", "a")], [("key", "a"), ("limit", "x")], []])
def test_queries_that_are_wrong_are_refused(query):
    with pytest.raises(BadLookup):
        from_query("n", query)


def test_a_key_of_several_columns_that_is_arrays_in_arrays_is_refused():
    with pytest.raises(UserError, match="key has several columns"):
        parse_key(["bigint", "string"], "[" * 100_000)


def test_a_key_out_of_json_is_of_its_type_or_refused():
    assert typed_key_reader(["bigint"])(7) == typed_key_reader(["bigint"])("7") == (7,)
    assert typed_key_reader(["boolean"])(True) == (True,)
    for ddl, item in (("bigint", True), ("bigint", None), ("string", 7), ("boolean", 1)):
        with pytest.raises(UserError, match="not of its type"):
            typed_key_reader([ddl])(item)
