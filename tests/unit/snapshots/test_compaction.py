"""A log that is put together: what it says stays, what it costs to read does not grow."""

import threading
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorage_state import failpoints
from moorage_state.errors import CorruptState, Fenced, UserError
from moorage_state.snapshots import (
    Checkpoint,
    Entry,
    Fence,
    Finished,
    Forgotten,
    LineageLog,
    LogWriter,
    Owner,
    Record,
    Released,
    Rescaled,
    Retire,
    Run,
    Savepoint,
    ancestors,
    finished_with,
    is_known,
    lines_of,
    log,
    log_key,
    rescaled,
    retained,
)
from moorage_state.snapshots.entries import Compacted, Unknown
from moorage_state.snapshots.history import (
    compacted,
    current_fence,
    is_released,
    may_have_had,
    next_checkpoint_id,
    restore_points,
    savepoints,
)
from moorage_state.snapshots.log import COMPACT_EVERY, VIEW_EVERY
from moorage_state.snapshots.object_keys import VIEW_KEY, moved_key
from moorage_state.stores import MemoryStore

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SHORT = 40


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs begin anew after few entries."""
    monkeypatch.setattr(log, "COMPACT_EVERY", SHORT)


def chk(checkpoint_id: int, fence: int = 1, run: int = 0) -> Checkpoint:
    key = f"chk-{checkpoint_id}/MANIFEST"
    return Checkpoint(fence, run, checkpoint_id, key, "sha256:0", checkpoint_id, AT)


def go_on(writer: LogWriter, first: int, count: int, *, compacts: bool = True) -> int:
    """Complete checkpoints and retire all but the newest two; returns the next id."""
    for checkpoint_id in range(first, first + count):
        writer.append(chk(checkpoint_id, writer.fence))
        if checkpoint_id > 2:
            writer.append(Retire(writer.fence, checkpoint_id - 2))
        if compacts:
            writer.compact()
    return first + count


def numbers(store: Any) -> list[int]:
    """The numbers of the entries that are there."""
    keys = (info.key for info in store.list("log/"))
    return [int(key[4:24]) for key in keys if not key.endswith(".moved.json")]


class Counting:
    """A store that counts what is asked of it."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.requests: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.inner, name)
        if not callable(call):
            return call

        def counted(*args: Any, **options: Any) -> Any:
            self.requests[name] += 1
            return call(*args, **options)

        return counted


@pytest.mark.usefixtures("short")
def test_a_log_that_began_anew_says_the_same_and_its_first_entries_are_gone(
    store: MemoryStore, owner: Owner
) -> None:
    writer = LogWriter.claim(store, owner, "me")
    writer.append(Run(1, 0))
    go_on(writer, 1, 3 * SHORT)
    found = LineageLog.open(store)
    assert numbers(store)[0] > SHORT
    assert len(numbers(store)) <= SHORT + 2
    for entries in ([e for _, e in found.read()], [r.entry for r in found.view().records]):
        assert [c.checkpoint_id for c in retained(entries)] == [3 * SHORT, 3 * SHORT - 1]
        assert current_fence(entries) == Fence(1, "me")
        assert ancestors(entries, 3 * SHORT) == tuple(range(1, 3 * SHORT + 1))
    assert len(writer.entries) < 20
    second = LogWriter.claim(store, owner, "next")
    assert second.fence == 2
    assert second.owner == writer.owner


def test_a_checkpoint_that_was_let_go_has_its_line_while_something_leads_to_it(
    store: MemoryStore, owner: Owner
) -> None:
    """Somebody may have a copy of it, which no entry tells of."""
    writer = LogWriter.claim(store, owner, "me")
    writer.append(Run(1, 0))
    go_on(writer, 1, 20)
    for one in (1, 2, 10, 15, 18):
        assert is_known(writer.entries, one)
        assert ancestors(writer.entries, one) == tuple(range(1, one + 1))
    assert not is_known(writer.entries, 21)

    writer.append(Run(1, 1, "file:///copy-of-chk-10", True, restored_id=10))
    go_on(writer, 21, 20)
    writer.append(Run(1, 2, "chk-40"))
    go_on(writer, 41, 10)
    assert len(writer.entries) < 20
    for one in (1, 10, 21, 30, 45, 50):
        line = (*range(1, min(one, 10) + 1), *range(21, one + 1))
        assert ancestors(writer.entries, one) == line
    assert not is_known(writer.entries, 15), "nothing leads to what was left behind"


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("old_at", ["append", "refresh", "watch", "settle"])
def test_a_writer_that_slept_while_its_next_number_was_deleted_is_fenced(
    store: MemoryStore, owner: Owner, old_at: str
) -> None:
    old = LogWriter.claim(store, owner, "old")
    new = LogWriter.claim(store, owner, "new")
    go_on(new, 1, 3 * SHORT)
    assert numbers(store)[0] > old.end + 1, "its next number is free again"
    if old_at == "settle":
        old._in_doubt = Record(old.end + 1, "lost", AT, Run(1, 0))
    calls = {"append": lambda: old.append(Run(1, 0)), "refresh": old.refresh, "watch": old.watch,
             "settle": old.settle}  # fmt: skip
    with pytest.raises(Fenced, match="holder='new'"):
        calls[old_at]()
    new.append(Run(2, 5))
    assert [e for _, e in LineageLog.open(store).read() if isinstance(e, Run)] == [Run(2, 5)]


@pytest.mark.usefixtures("short")
def test_a_claim_that_slept_while_its_number_was_deleted_takes_the_next_fence(
    store: MemoryStore, owner: Owner
) -> None:
    holder = LogWriter.claim(store, owner, "holder")

    class Sleepy(Counting):
        def put_if_absent(self, key: str, data: bytes) -> None:
            if self.requests["slept"] == 0:
                self.requests["slept"] += 1
                go_on(holder, 1, 3 * SHORT)
            store.put_if_absent(key, data)

    woken = LogWriter.claim(Sleepy(store), owner, "woken")
    assert woken.fence == 2
    with pytest.raises(Fenced, match="woken"):
        holder.append(Run(1, 0))
    assert retained(woken.entries)[0].checkpoint_id == 3 * SHORT


@pytest.mark.usefixtures("short")
def test_readers_never_take_a_log_that_begins_anew_under_them_for_damaged(
    store: MemoryStore, owner: Owner
) -> None:
    writer = LogWriter.claim(store, owner, "me")
    steps = iter(range(1, 10_000))

    class Moving(Counting):
        """Before each of the first requests the job goes on by half a log."""

        def get(self, key: str, **options: Any) -> bytes:
            self._move()
            return store.get(key, **options)

        def list(self, prefix: str, start_after: str = "") -> Iterator[Any]:
            self._move()
            found = list(store.list(prefix, start_after))
            self._move()
            return iter(found)

        def _move(self) -> None:
            with lock:
                if self.requests["moved"] < 12:
                    self.requests["moved"] += 1
                    for step in (next(steps) for _ in range(SHORT // 4)):
                        go_on(writer, step, 1)

    lock = threading.RLock()
    go_on(writer, next(steps), 1)
    for read in (
        lambda log_: [e for _, e in log_.read()],
        lambda log_: [r.entry for r in log_.view().records],
    ):
        moving: Any = Moving(store)
        seen = retained(read(LineageLog.open(moving)))[0].checkpoint_id
        assert 1 <= seen <= retained(writer.entries)[0].checkpoint_id


@pytest.mark.usefixtures("short")
def test_an_entry_that_is_missing_after_the_beginning_is_damage_all_the_same(
    store: MemoryStore, owner: Owner
) -> None:
    writer = LogWriter.claim(store, owner, "me")
    go_on(writer, go_on(writer, 1, 2 * SHORT), 2, compacts=False)
    first = numbers(store)[0]
    for seq in (first, first + 1):
        data = store.get(log_key(seq))
        store.delete(log_key(seq))
        with pytest.raises(CorruptState, match="missing"):
            LineageLog.open(store).read()
        store.put(log_key(seq), data)
    LineageLog.open(store).read()
    for info in list(store.list("log/")):
        store.delete(info.key)
    store.put("chk-1/MANIFEST", b"")
    with pytest.raises(CorruptState, match="log is missing"):
        LogWriter.claim(store, owner, "a copy does not stand for the log")


def test_a_copy_is_made_sure_of_while_what_follows_it_is_listed(
    store: MemoryStore, owner: Owner
) -> None:
    """One after the other it would be one more wait for the store in each start."""
    writer = LogWriter.claim(store, owner, "driver")
    go_on(writer, 1, 2 * VIEW_EVERY)
    listed = threading.Event()

    class Waiting:
        """Answers nothing after the copy before it was asked for a list."""

        url = store.url

        def list(self, *where: str) -> Iterator[Any]:
            listed.set()
            return store.list(*where)

        def get(self, key: str) -> bytes:
            assert key == VIEW_KEY or listed.wait(20)
            return store.get(key)

    waiting: Any = Waiting()
    assert LineageLog.open(waiting).view() == LineageLog.open(store).view()
    assert store.get(VIEW_KEY)


@pytest.mark.parametrize("damage", [b"", b"{", "cut"])
def test_a_copy_that_is_damaged_is_done_without(
    store: MemoryStore, owner: Owner, damage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    go_on(LogWriter.claim(store, owner, "me"), 1, 20)
    whole = store.get(VIEW_KEY)
    before = LineageLog.open(store).view()
    store.put(VIEW_KEY, whole[: len(whole) // 2] if damage == "cut" else damage)
    after = LineageLog.open(store).view()
    assert (after.end, retained([r.entry for r in after.records])) == (
        before.end,
        retained([r.entry for r in before.records]),
    )
    assert "damaged" in caplog.text


@pytest.mark.usefixtures("short")
def test_a_copy_that_is_as_old_as_can_be_only_costs_requests(
    store: MemoryStore, owner: Owner
) -> None:
    writer = LogWriter.claim(store, owner, "me")
    following = go_on(writer, 1, 10)
    old = store.get(VIEW_KEY)
    go_on(writer, following, 4 * SHORT)
    store.put(VIEW_KEY, old)
    second = LogWriter.claim(store, owner, "next")
    assert second.fence == 2
    assert retained(second.entries)[0].checkpoint_id == following + 4 * SHORT - 1


PLACES = [place for place in failpoints.PLACES if place.startswith("log.")]


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("copied", [True, False])
def test_a_driver_that_dies_at_any_step_is_followed_by_one_that_knows_everything(
    store: MemoryStore, owner: Owner, place: str, *, copied: bool
) -> None:
    writer = LogWriter.claim(store, owner, "first")
    go_on(writer, 1, SHORT, compacts=False)

    class Died(BaseException):
        pass

    def die(passed: str) -> None:
        if passed == place:
            raise Died

    def live() -> None:
        writer.compact()
        go_on(writer, SHORT + 1, 1)

    with pytest.raises(Died), failpoints.watched(die):
        live()
    if not copied:
        store.delete(VIEW_KEY)
    second = LogWriter.claim(store, owner, "second")
    following = next_checkpoint_id(second.entries)
    assert following in (SHORT + 1, SHORT + 2)
    go_on(second, following, SHORT)
    third = LogWriter.claim(store, owner, "third")
    last = following + SHORT - 1
    assert [c.checkpoint_id for c in retained(third.entries)][:2] == [last, last - 1]
    assert ancestors(third.entries, last)[-1] == last
    assert len(numbers(store)) <= 3 * SHORT, "what the first left was deleted"


@pytest.mark.usefixtures("short")
def test_two_that_put_the_log_together_at_once_begin_it_in_one_place(
    store: MemoryStore, owner: Owner
) -> None:
    first = LogWriter.claim(store, owner, "first")
    following = go_on(first, 1, SHORT, compacts=False)
    taken: list[LogWriter] = []

    def take_over(place: str) -> None:
        if place == "log.before_mark" and not taken:
            taken.append(LogWriter.claim(store, owner, "second"))
            go_on(taken[0], following, SHORT, compacts=False)
            taken[0].compact()

    with pytest.raises(Fenced), failpoints.watched(take_over):
        first.compact()
    go_on(taken[0], following + SHORT, 5)
    for entries in ([e for _, e in LineageLog.open(store).read()], taken[0].entries):
        assert retained(entries)[0].checkpoint_id == following + SHORT + 4
    last = following + SHORT + 4
    assert ancestors(taken[0].entries, last) == tuple(range(1, last + 1))


def test_a_start_asks_for_as_little_after_a_day_as_at_first(
    store: MemoryStore, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "COMPACT_EVERY", 256)

    def asked() -> int:
        counting: Any = Counting(store)
        LogWriter.claim(counting, owner, "next")
        return counting.requests.total()

    new = asked()
    writer = LogWriter.claim(store, owner, "long")
    writer.append(Run(writer.fence, 0))
    following, most = 1, 0
    for count in (VIEW_EVERY * 10 + 1, 600, 1 + VIEW_EVERY // 4, 301):
        following = go_on(writer, following, count)
        most = max(most, asked())
        writer = LogWriter.claim(store, owner, "long")
    assert most <= new + 10


KINDS = st.sampled_from(
    [
        "complete",
        "complete",
        "complete",
        "retire",
        "savepoint",
        "forget",
        "rewind",
        "run",
        "restart",
        "end",
        "elsewhere",
        "copy",
        "newer copy",
        "release",
        "claim",
        "empty",
        "rescale",
    ]
)


def history_of(  # noqa: C901, PLR0912 - a case for each kind of step
    steps: list[tuple[str, int]],
) -> list[Entry]:
    """A log as drivers write it."""
    entries: list[Entry] = [Owner("c", "n", "j", "u", "l"), Fence(1, "a"), Run(1, 0)]
    fence, run, following, nonce = 1, 0, 1, 0
    for step, choice in steps:
        existing = retained(entries)
        chosen = existing[choice % len(existing)].checkpoint_id if existing else None
        match step:
            case "complete":
                entries.append(chk(following, fence, run))
                following += 1
            case "retire" if chosen is not None and len(existing) > 1:
                entries.append(Retire(fence, existing[-1].checkpoint_id if choice % 4 else chosen))
            case "savepoint":
                late = following - choice % 3
                epoch = late if late > 0 else following
                entries.append(
                    Savepoint(fence, run, following, f"file:///s{following}", "d", epoch, AT)
                )
                following += 1
            case "forget" if taken := savepoints(entries):
                entries.append(Forgotten(fence, taken[choice % len(taken)].checkpoint_id))
            case "rewind" if chosen is not None:
                nonce, run = nonce + 1, run + 1
                entries.append(Run(fence, run, f"chk-{chosen}", True, nonce))
            case "run" if existing:
                run += 1
                entries.append(Run(fence, run, f"chk-{existing[0].checkpoint_id}"))
            case "elsewhere":
                known = [e for e in entries if isinstance(e, Savepoint)]
                own = known[choice % len(known)] if known and choice % 2 else None
                run += 1
                entries.append(
                    Run(fence, run, own.url if own else "file:///x", True, 0,
                        own.checkpoint_id if own else 0, order_id=f"o{choice}")
                )  # fmt: skip
            case "copy" if existing:
                line = ancestors(entries, existing[0].checkpoint_id)
                copied, run = line[choice % len(line)], run + 1
                entries.append(Run(fence, run, "file:///copy", True, 0, copied, order_id="c"))
            case "newer copy":
                # What was between the two was set back, and is not there any more.
                following, run = following + choice + 1, run + 1
                entries.append(
                    Run(fence, run, "file:///newer", True, 0, following - 1, order_id="n")
                )
            case "empty":
                run += 1
                entries.append(Run(fence, run, None, True, 0, order_id=f"e{choice}"))
            case "restart":
                fence, run = fence + 1, 0
                entries.append(Fence(fence, "b"))
            case "end":
                entries.append(Finished(fence))
            case "rescale":
                run += 1
                newest = max((e.checkpoint_id for e in existing), default=0)
                entries.append(Rescaled(fence, run, newest, 1 + choice, 1 + choice // 4))
            case "release":
                entries.extend([Released(fence), Owner("c", "n", "j", f"u{choice}", "l")])
    return entries


def answers(entries: list[Entry], whole: list[Entry]) -> dict[str, Any]:
    """What is asked of a log, with the savepoints that there ever were."""
    points: Any
    try:
        found = restore_points(entries)
        points = (
            found[0] if found else None,
            [p.checkpoint.checkpoint_id for p in found if p.checkpoint is not None],
        )
    except UserError as error:
        points = str(error).partition(":")[0]
    runs = [e for e in entries if isinstance(e, Run)]
    every = [e.checkpoint_id for e in whole if isinstance(e, Savepoint)]
    last = [e.restored_id for e in whole if isinstance(e, Run)][-1:]
    points_of = [*(e.checkpoint_id for e in retained(whole)), *every, *filter(None, last)]
    ids = {one for point in points_of for one in ancestors(whole, point)}
    return {
        "points": points,
        "retained": retained(entries),
        "next": next_checkpoint_id(entries),
        "lacks a later one": not may_have_had(entries, 1 << 40),
        "fence": current_fence(entries),
        "released": is_released(entries),
        "finished": finished_with(entries),
        "rescaled": rescaled(entries),
        "orders": {(r.order_id, r.restore_nonce) for r in runs if r.explicit},
        "savepoints": savepoints(entries),
        "unknown": [one for one in ids if not is_known(entries, one)],
        "history": {one: ancestors(entries, one) for one in ids},
        "lines": lines_of(entries, ids),
    }


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(KINDS, st.integers(0, 11)), max_size=40), st.data())
def test_whatever_is_let_go_of_nobody_misses(steps: list[tuple[str, int]], data: Any) -> None:
    whole = history_of(steps)
    records = [Record(seq, f"a{seq}", AT, entry) for seq, entry in enumerate(whole, 1)]
    known: list[Record] = []
    cuts = data.draw(st.sets(st.integers(1, len(records)), max_size=6))
    for record in records:
        known.append(record)
        if record.seq in cuts:
            kept, past = compacted(known)
            known = [*kept, Record(record.seq, "", AT, Compacted(1, 0, 0, past, ()))]
    found = answers([record.entry for record in known], whole)
    assert found == answers(whole, whole)
    assert found["lines"] == {i: one for i, one in found["history"].items() if i in found["lines"]}


def test_the_id_of_a_copy_that_is_the_highest_stays_though_its_run_says_nothing_else() -> None:
    entries: list[Entry] = [
        *(chk(1), Run(1, 1, "file:///newer", True, restored_id=9), Retire(1, 1)),
        *(Run(1, run, None, True) for run in (2, 3)),
    ]
    kept, _ = compacted([Record(seq, "", AT, entry) for seq, entry in enumerate(entries, 1)])
    assert next_checkpoint_id(record.entry for record in kept) == 10


def test_of_what_a_later_release_logged_everything_stays() -> None:
    later: list[Entry] = [Unknown("?label", {"checkpoint_id": one}) for one in (1, 2, 2)]
    entries = [Owner("c", "n", "j", "u", "l"), *later, Unknown("?other", {})]
    records = [Record(seq, f"a{seq}", AT, entry) for seq, entry in enumerate(entries, 1)]
    assert compacted(records)[0] == records


def test_what_is_known_of_five_years_is_as_much_as_there_is() -> None:
    assert _size_after(4_000) == _size_after(400)


def _size_after(checkpoints: int) -> int:
    known: list[Record] = []
    entries: list[Entry] = [Owner("c", "n", "j", "u", "l")]
    for one in range(1, checkpoints + 1):
        if one % 50 == 1:
            entries += [Fence(one, "h"), Run(one, 0, f"chk-{one - 1}" if one > 1 else None)]
        entries += [chk(one, one), *([Retire(one, one - 1)] if one > 1 else [])]
        if one % 4 == 0:
            known += [Record(one, "a", AT, entry) for entry in entries]
            kept, past = compacted(known)
            known, entries = [*kept, Record(one, "", AT, Compacted(1, 0, 0, past, ()))], []
            assert len(past.links) <= 4
    return len(known)


def test_the_constants_are_what_the_documents_say() -> None:
    assert (VIEW_EVERY, COMPACT_EVERY) == (8, 4096)


def test_a_mark_of_another_place_is_damage(store: MemoryStore, owner: Owner) -> None:
    go_on(LogWriter.claim(store, owner, "me"), 1, 3)
    store.put(moved_key(0), store.get(log_key(2)))
    with pytest.raises(CorruptState, match="mark"):
        LineageLog.open(store).view()
