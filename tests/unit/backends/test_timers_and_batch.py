"""Timers of every backend, and the backend that has one key at a time."""

import random

import numpy as np
import pytest

from moorage_state.coordinator import CheckpointOptions
from moorage_state.descriptors import ListStateDescriptor, ValueStateDescriptor
from moorage_state.errors import UserError
from moorage_state.keyed.timers import TimeDomain
from moorage_state.state_backends import (
    BatchExecutionStateBackend,
    EmbeddedRocksDBStateBackend,
    sort_key,
)
from moorage_state.state_backends.storage import DriverCheckpointStorage

from .conftest import SAVEPOINT, entries_in

COUNT = ValueStateDescriptor("count", "long")
ITEMS = ListStateDescriptor("items", "long")
EVENT, PROCESSING = TimeDomain


@pytest.fixture
def keyed(backend, new_backend):
    return new_backend(backend)


def fired(keyed, up_to, domain=EVENT, on_timer=lambda *_: None):
    found = []

    def note(time_ms, key):
        found.append((time_ms, key))
        assert keyed.current_key == key
        on_timer(time_ms, key)

    assert keyed.timers(domain).fire_due(up_to, note) == len(found)
    return found


# -- timers -----------------------------------------------------------------------------------


def test_timers_fire_in_the_order_of_time_over_all_keys(keyed):
    rng, expected = random.Random(5), set()
    for _ in range(600):
        key, time_ms = f"k{rng.randrange(50)}", rng.randrange(-500, 500)
        keyed.set_current_key(key)
        keyed.timers().register(time_ms)
        expected.add((time_ms, key))
    assert len(keyed.timers()) == len(expected)
    assert keyed.timers().peek() == min(expected)[0]
    first = fired(keyed, 0)
    assert [time_ms for time_ms, _ in first] == sorted(t for t, _ in expected if t <= 0)
    rest = fired(keyed, 1 << 62)
    assert set(first + rest) == expected
    assert len(first + rest) == len(expected)
    assert keyed.timers().peek() is None


def test_there_is_one_timer_for_a_key_and_time_and_deleting_takes_it(keyed):
    keyed.set_current_key("a")
    for _ in range(3):
        keyed.timers().register(5)
    keyed.timers().register(6)
    keyed.timers().delete(6)
    keyed.timers().delete(7)
    assert fired(keyed, 10) == [(5, "a")]
    keyed.timers().register(5)
    keyed.timers().delete(5)
    keyed.timers().register(5)
    assert fired(keyed, 10) == [(5, "a")]


def test_the_domains_have_timers_of_their_own(keyed):
    keyed.set_current_key("a")
    keyed.timers(EVENT).register(5)
    keyed.timers(PROCESSING).register(4)
    keyed.timers(PROCESSING).register(5)
    assert fired(keyed, 9, PROCESSING) == [(4, "a"), (5, "a")]
    assert fired(keyed, 9, EVENT) == [(5, "a")]


def test_a_timer_that_is_set_while_timers_fire_fires_in_its_turn(keyed):
    for key in ("a", "b"):
        keyed.set_current_key(key)
        keyed.timers().register(10)

    def on_timer(time_ms, key):
        if (time_ms, key) == (20, "a"):
            keyed.timers().register(30)
            keyed.timers().delete(30)
        elif time_ms < 30:
            keyed.timers().register(time_ms + 10)
            keyed.timers().register(1000)

    found = fired(keyed, 35, on_timer=on_timer)
    times = [time_ms for time_ms, _ in found]
    assert times == sorted(times)
    assert set(found) == {(10, "a"), (10, "b"), (20, "a"), (20, "b"), (30, "b")}
    assert len(found) == len(set(found))
    assert len(keyed.timers()) == 2


def test_a_timer_of_processing_time_that_sets_itself_for_a_time_that_has_come_waits(keyed):
    for key in ("a", "b"):
        keyed.set_current_key(key)
        keyed.timers(PROCESSING).register(10)

    def again(time_ms, key):
        keyed.timers(PROCESSING).register(time_ms if key == "a" else time_ms - 3)
        if time_ms < 20:
            keyed.timers(PROCESSING).register(time_ms + 10)

    found = fired(keyed, 25, PROCESSING, again)
    assert sorted(found) == [(10, "a"), (10, "b"), (20, "a"), (20, "b")]
    assert keyed.timers(PROCESSING).peek() == 7
    found = fired(keyed, 25, PROCESSING)
    assert sorted(found) == [(7, "b"), (10, "a"), (17, "b"), (20, "a")]


def test_many_timers_of_one_key_group_fire_page_by_page(keyed):
    keyed.set_current_key("a")
    for time_ms in range(1000):
        keyed.timers().register(time_ms)
    assert [time_ms for time_ms, _ in fired(keyed, 899)] == list(range(900))
    assert len(keyed.timers()) == 100


def test_state_is_that_of_the_timers_key_and_the_key_before_is_current_again(keyed):
    count = keyed.get_state(COUNT)
    for n, key in enumerate("abc"):
        keyed.set_current_key(key)
        count.update(n)
        keyed.timers().register(n)
    seen = []

    def on_timer(*_):
        seen.append(count.value())
        count.clear()

    fired(keyed, 9, on_timer=on_timer)
    assert seen == [0, 1, 2]
    assert keyed.current_key == "c"
    assert count.value() is None
    count.update(7)
    keyed.set_current_key("a")
    assert count.value() is None
    keyed.set_current_key("c")
    assert count.value() == 7


def test_an_error_of_a_timer_passes_through_and_its_timer_is_gone(keyed):
    keyed.set_current_key("a")
    keyed.timers().register(1)
    keyed.timers().register(2)

    def fail(*_):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        keyed.timers().fire_due(5, fail)
    assert fired(keyed, 5) == [(2, "a")]


def test_timers_and_states_need_a_key(keyed):
    with pytest.raises(RuntimeError, match="belong"):
        keyed.timers().register(1)
    with pytest.raises(RuntimeError, match="belong"):
        keyed.get_state(COUNT).value()
    with pytest.raises(RuntimeError, match="belong"):
        keyed.get_state(COUNT).update(1)
    with pytest.raises(RuntimeError, match="belong"):
        keyed.get_list_state(ITEMS).add(1)


def test_a_time_that_does_not_fit_is_refused(keyed):
    keyed.set_current_key("a")
    for time_ms in (1 << 63, -(1 << 63) - 1):
        with pytest.raises(ValueError, match="64 bits"):
            keyed.timers().register(time_ms)


@pytest.mark.parametrize("time_ms", [1.5, True, "5", None])
def test_a_time_that_is_no_integer_is_refused(keyed, time_ms):
    keyed.set_current_key("a")
    for domain in TimeDomain:
        for use in (keyed.timers(domain).register, keyed.timers(domain).delete):
            with pytest.raises(TypeError, match=f"got={time_ms!r} of type"):
                use(time_ms)


def test_an_integer_of_another_make_is_one(op):
    op.with_key("a")
    op.current.timers().register(np.int64(5))
    op.restore(op.take(SAVEPOINT))
    op.restore(op.take())
    assert fired(op.made[0], 9) == [(5, "a")]


@pytest.mark.parametrize("domain", TimeDomain)
def test_a_timer_may_fire_others_itself(keyed, domain):
    keyed.set_current_key("a")
    timers, seen = keyed.timers(domain), []
    for time_ms in range(1, 6):
        timers.register(time_ms)

    def on_timer(time_ms, key):
        seen.append(time_ms)
        if time_ms == 2:
            assert timers.fire_due(3, lambda inner, _: seen.append(-inner)) == 1
            assert keyed.current_key == key

    assert timers.fire_due(9, on_timer) == 4
    assert seen == [1, 2, -3, 4, 5]


@pytest.mark.parametrize("before", ["HEAP", "ROCKSDB"])
@pytest.mark.parametrize("after", ["HEAP", "ROCKSDB"])
def test_timers_move_between_memory_and_the_database_at_a_restore(subtasks, before, after):
    op = subtasks(EmbeddedRocksDBStateBackend(timer_service=before), 2)
    for n in range(30):
        op.with_key(f"k{n}")
        op.current.timers(EVENT).register(n)
        op.current.timers(PROCESSING).register(-n)
    for n in range(0, 30, 3):
        op.with_key(f"k{n}")
        op.current.timers(EVENT).delete(n)
    handles = op.take()
    op.close()
    op.parallelism = 3
    op.start(handles, EmbeddedRocksDBStateBackend(timer_service=after))
    for domain, sign, kept in (
        (EVENT, 1, [n for n in range(30) if n % 3]),
        (PROCESSING, -1, range(30)),
    ):
        found = [pair for one in op.made for pair in fired(one, 1 << 60, domain)]
        assert sorted(found) == sorted((sign * n, f"k{n}") for n in kept)
    handles = op.take()
    op.restore(handles)
    assert [len(one.timers()) for one in op.made] == [0, 0, 0]


# -- batch ------------------------------------------------------------------------------------


@pytest.fixture
def batch(new_backend):
    return new_backend(BatchExecutionStateBackend())


def in_order(keys):
    return sorted(keys, key=sort_key(["string"], 16))


def test_sorted_input_gives_what_any_other_backend_gives(batch, keyed):
    rows = [(f"k{n % 17}", n) for n in range(200)]
    answers = []
    for one, given in ((keyed, rows), (batch, in_order_rows(rows))):
        answer = {}
        count, items = one.get_state(COUNT), one.get_list_state(ITEMS)
        for key, n in given:
            one.set_current_key(key)
            count.update((count.value() or 0) + n)
            items.add(n)
            answer[key] = (count.value(), items.get())
        answers.append(answer)
    assert answers[0] == answers[1]


def in_order_rows(rows):
    order = sort_key(["string"], 16)
    return sorted(rows, key=lambda row: order(row[0]))


def test_one_keys_state_is_in_memory_at_a_time(batch):
    count, items = batch.get_state(COUNT), batch.get_list_state(ITEMS)
    batch.set_timer_handler(lambda *_: None)
    for key in in_order([f"k{n}" for n in range(50)]):
        batch.set_current_key(key)
        assert (count.value(), items.get()) == (None, [])
        count.update(1)
        items.add_all([1, 2])
        batch.timers().register(1)
        assert entries_in(batch) == 4
    assert list(batch.get_keys("count")) == []
    batch.finish_key()
    assert entries_in(batch) == 0


def test_a_key_that_comes_too_late_is_refused(batch):
    first, second, third = in_order(["a", "b", "c"])
    batch.set_current_key(first)
    batch.set_current_key(third)
    with pytest.raises(UserError, match=f"not sorted by key: key='{second}' after='{third}'"):
        batch.set_current_key(second)
    with pytest.raises(UserError, match="not sorted"):
        batch.set_current_key(first)
    batch.set_current_key(third)


def test_a_keys_timers_fire_when_the_key_is_done(batch):
    found, count = [], batch.get_state(COUNT)

    def on_timer(domain, time_ms, key):
        found.append((domain, time_ms, key, count.value()))

    batch.set_timer_handler(on_timer)
    first, second = in_order(["a", "b"])
    batch.set_current_key(first)
    count.update(1)
    batch.timers().register(5)
    batch.timers(PROCESSING).register(1 << 60)
    assert found == []
    batch.set_current_key(second)
    assert found == [(EVENT, 5, first, 1), (PROCESSING, 1 << 60, first, 1)]
    assert count.value() is None
    batch.timers().register(7)
    batch.finish_key()
    assert found[-1] == (EVENT, 7, second, None)


def test_what_timers_set_at_the_end_of_their_key_is_ignored_and_said_once(batch, caplog):
    found = []

    def on_timer(domain, time_ms, _key):
        found.append((domain, time_ms))
        for other in TimeDomain:
            batch.timers(other).register(time_ms + 1)
        batch.timers(EVENT).delete(9)

    batch.set_timer_handler(on_timer)
    for key in in_order(["a", "b"]):
        batch.set_current_key(key)
        for time_ms in (7, 9):
            batch.timers(EVENT).register(time_ms)
    batch.finish_key()
    assert found == [(EVENT, 7), (EVENT, 7)]
    (said,) = caplog.messages
    assert said.startswith("timer that is set at the end of its key is ignored: operator=op key=")


def test_a_timer_that_is_set_already_is_no_ignored_one(batch, caplog):
    found = []

    def on_timer(time_ms):
        found.append(time_ms)
        if time_ms < 11:
            batch.timers(EVENT).register(11)

    batch.set_current_key("a")
    batch.timers(EVENT).register(7)
    batch.timers(EVENT).register(9)
    batch.timers(EVENT).register(11)
    batch.set_timer_handler(lambda _domain, time_ms, _key: on_timer(time_ms))
    batch.finish_key()
    assert found == [7, 9, 11]
    assert not caplog.messages


def test_timers_that_nobody_takes_are_not_forgotten_without_a_word(batch):
    batch.set_current_key("a")
    batch.timers().register(7)
    with pytest.raises(UserError, match="operator=op key='a' timers=1; call set_timer_handler"):
        batch.finish_key()
    fired = []
    batch.set_timer_handler(lambda *timer: fired.append(timer))
    batch.finish_key()
    assert fired == [(EVENT, 7, "a")]


def test_a_key_that_was_finished_does_not_come_again(batch):
    count = batch.get_state(COUNT)
    batch.set_current_key("a")
    count.update(1)
    batch.finish_key()
    assert batch.current_key is None
    with pytest.raises(UserError, match="not sorted by key: key='a' after='a'"):
        batch.set_current_key("a")
    with pytest.raises(RuntimeError, match="there is none at this point"):
        count.value()


def test_a_timer_does_not_change_the_key(batch):
    first, second = in_order(["a", "b"])
    batch.set_timer_handler(lambda *_: batch.set_current_key(second))
    batch.set_current_key(first)
    batch.timers().register(7)
    with pytest.raises(UserError, match="on_timer must not change the key"):
        batch.finish_key()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            CheckpointOptions.for_checkpoint_with_default_location(),
            "Snapshotting is not supported in BATCH runtime mode.",
        ),
        (
            CheckpointOptions.for_savepoint(None),
            "Savepoints are not supported in BATCH runtime mode.",
        ),
    ],
)
def test_snapshots_are_refused_with_flinks_words(batch, options, words):
    factory = DriverCheckpointStorage().create_access("job").location_for_checkpoint(1)
    with pytest.raises(UserError, match=words):
        batch.snapshot(1, 0.0, factory.stream_factory(), options)


def test_keyed_state_cannot_be_restored_into_it(subtasks, backend, new_backend):
    op = subtasks(backend)
    op.with_key("k")
    op.state(COUNT).update(1)
    with pytest.raises(UserError, match="backend=batch"):
        new_backend(BatchExecutionStateBackend(), restore=op.take())
