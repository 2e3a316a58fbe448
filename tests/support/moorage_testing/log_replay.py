"""Traces of the log's model, walked by the real log, step by step.

Each driver of the model is a thread that runs the real writer. It stands still at every place where
the model has a step, until the trace lets it go on; the trace says what becomes of the request that
it makes: done, done without an answer, or done much later. After each step the store must hold
what the model's holds, and the drivers must have the fences that the model's have.
"""

import queue
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

from moorage_state import failpoints
from moorage_state.errors import AlreadyExists, Fenced, StoreUnavailable
from moorage_state.snapshots import (
    Checkpoint,
    CheckpointStore,
    Fence,
    LineageLog,
    LogWriter,
    Manifest,
    Owner,
    Record,
    Rescaled,
    Retire,
    parallelism_of,
    retained,
)
from moorage_state.snapshots.entries import Compacted, decode_record, encode_record
from moorage_state.snapshots.object_keys import checkpoint_id_of, log_key
from moorage_state.stores import MemoryStore
from moorage_testing.log_model import AS_THEY_ARE, Entry, World, base_of, lies_at, steps

__all__ = ["Replay", "Trace", "sample"]

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
OWNER = Owner("here", "default", "flights", "uid-1")

Trace = list[tuple[str, World]]

_GATES = {
    "log.before_put": {"claim", "complete", "retire", "compact", "rescale"},
    "log.before_confirm": {"confirm"},
    "complete.before_manifest": {"manifest"},
    "log.before_mark": {"move"},
    "log.before_clear": {"clear"},
    "read": {"read on"},
    "begin": {"begin"},
    "look": {"look"},
    "delete": {"delete"},
    "end": {"end"},
}
"""Where a driver stands still, and at which steps of the model."""


def sample(world: World, seed: int) -> Trace:
    """One way through the model, at random: what happened, and the world after it."""
    rng = random.Random(seed)
    trace = [("start", world)]
    reading: int | None = None
    while following := [
        (what, then) for what, then in steps(world, AS_THEY_ARE) if _wanted(what, reading)
    ]:
        what, world = rng.choice(following)
        # The real log's first look and the rest of its reading are one step.
        reading = int(what[0]) if what.endswith("finds the beginning") else None
        trace.append((what, world))
    return trace


def _wanted(what: str, reading: int | None) -> bool:
    # A deletion that failed is repeated only by the next compaction, in the real log.
    if "clears, " in what or "deletes, " in what:
        return False
    return reading is None or what == f"{reading}: reads"


class _Died(BaseException):
    """The process ends here."""


class _Over(BaseException):
    """The trace is over."""


class _Driver:
    """A real driver in a thread."""

    def __init__(self, replay: "Replay", number: int, to_complete: int) -> None:
        self.replay = replay
        self.number = number
        self.to_complete = to_complete
        self.writer: LogWriter | None = None
        self.claiming = False
        self.outcome = ""
        self.run = 0
        self.gates: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.orders: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.at = ""
        self.thread = threading.Thread(target=self._run, name=f"driver-{number}", daemon=True)

    def gate(self, name: str) -> str:
        """Stand still here until the trace goes on; returns what it says."""
        self.gates.put(name)
        self.outcome = self.orders.get()
        if self.outcome == "dies":
            raise _Died
        if self.outcome == "is over":
            raise _Over
        return self.outcome

    def let(self, order: str) -> None:
        """Let it go on to the next place."""
        self.orders.put(order)
        self.at = self.gates.get(timeout=60)

    def _run(self) -> None:
        try:
            while not self._lived():
                pass
        except _Over:
            return
        except Exception as error:  # noqa: BLE001 - told by the thread that walks
            self.gates.put(f"failed: {error!r}")

    def _lived(self) -> bool:
        """One life of the process; False if it died, and begins anew."""
        try:
            self._live()
        except _Died:
            return False
        except Fenced:
            self.writer = None
        self.gate("end")
        return True

    def _live(self) -> None:
        self.writer, self.run = None, 0
        store = self.replay.store(self)
        while self.writer is None:
            self.claiming = True
            try:
                self.writer = LogWriter.claim(store, OWNER, f"driver-{self.number}")
            except StoreUnavailable:
                continue
            finally:
                self.claiming = False
        checkpoints = CheckpointStore(store)
        while True:
            order = self.gate("begin")
            if order == "compacts":
                _until_it_answers(self.writer.compact)
            elif order == "rescales":
                self._rescale(self.writer)
            elif self.to_complete == 0:
                return
            elif self._complete(self.writer, checkpoints):
                self.to_complete -= 1
                self._retire(self.writer)

    def _complete(self, writer: LogWriter, checkpoints: CheckpointStore) -> bool:
        checkpoint_id = checkpoints.next_id(writer.entries)
        manifest = Manifest(
            lineage=writer.lineage,
            checkpoint_id=checkpoint_id,
            epoch=checkpoint_id,
            fence=writer.fence,
            run=self.run,
            created_at=AT,
            job_name="flights",
            moorage_version="0",
            max_parallelism=1,
            operators={},
            source={},
        )
        try:
            _until_it_answers(lambda: checkpoints.complete(writer, manifest, AT))
        except AlreadyExists:
            return False
        return True

    def _rescale(self, writer: LogWriter) -> None:
        newest = retained(writer.entries)[0].checkpoint_id
        run = 1 + max((e.run for e in writer.entries if isinstance(e, Rescaled)), default=0)
        to = parallelism_of(writer.entries, 1) + 1
        entry = Rescaled(writer.fence, run, newest, to, 1)
        _until_it_answers(partial(writer.append, entry))
        self.run = run

    def _retire(self, writer: LogWriter) -> None:
        older = [c.checkpoint_id for c in reversed(retained(writer.entries))][:-1]
        for checkpoint_id in older:
            entry = Retire(writer.fence, checkpoint_id)
            _until_it_answers(partial(writer.append, entry))
        if older:
            self.gate("look")
            writer.refresh()
            self.gate("delete")


def _until_it_answers(call: Callable[[], object]) -> None:
    while True:
        try:
            call()
        except StoreUnavailable:
            continue
        return


class _Store:
    """The store as one driver reaches it: of what it writes the trace says what becomes."""

    def __init__(self, inner: MemoryStore, driver: _Driver) -> None:
        self._inner = inner
        self._driver = driver

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def put_if_absent(self, key: str, data: bytes) -> None:
        """See `ObjectStore`."""
        outcome, self._driver.outcome = self._driver.outcome, ""
        if outcome == "late":
            self._driver.replay.late.append((key, data))
        else:
            try:
                self._inner.put_if_absent(key, data)
            except AlreadyExists:
                if outcome != "lost":
                    raise
        if outcome in {"late", "lost"}:
            raise StoreUnavailable(f"no answer: {outcome}")


class Replay:
    """The real log in the world of a trace."""

    def __init__(self, world: World) -> None:
        self.inner = MemoryStore("replay")
        # The model knows no owner: its numbers are one less.
        owner = Owner(OWNER.cluster, OWNER.namespace, OWNER.name, OWNER.uid, "lineage-1")
        self.inner.put(log_key(1), encode_record(Record(1, "owner", AT, owner)))
        self.late: list[tuple[str, bytes]] = []
        self._by_request: dict[Any, tuple[str, bytes]] = {}
        self.drivers = [
            _Driver(self, number, one.to_complete) for number, one in enumerate(world.drivers)
        ]
        self._by_thread = {driver.thread: driver for driver in self.drivers}

    def store(self, driver: _Driver) -> Any:
        """The store as this driver reaches it."""
        return _Store(self.inner, driver)

    def walk(self, trace: Trace) -> Iterator[str]:
        """Go through the trace; yields what is not as in the model, with the way to it."""
        way: list[str] = []
        with ExitStack() as stack:
            stack.enter_context(failpoints.watched(self._passed))
            view = LineageLog.view
            setattr(LineageLog, "view", self._gated(view))  # noqa: B010 - for the time of the walk
            stack.callback(setattr, LineageLog, "view", view)
            stack.callback(self._end)
            for driver in self.drivers:
                driver.thread.start()
                driver.at = driver.gates.get(timeout=60)
            before = trace[0][1]
            for what, after in trace[1:]:
                way.append(what)
                self._step(what, before, after)
                if wrong := self._differences(after):
                    yield "; ".join([*way, *wrong])
                    return
                before = after

    def _end(self) -> None:
        for driver in self.drivers:
            driver.orders.put("is over")
            driver.thread.join(60)

    def _gated(self, view: Callable[[LineageLog], Any]) -> Callable[[LineageLog], Any]:
        def gated(log: LineageLog) -> Any:
            driver = self._by_thread.get(threading.current_thread())
            if driver is not None and driver.claiming:
                driver.gate("read")
            return view(log)

        return gated

    def _passed(self, place: str) -> None:
        driver = self._by_thread.get(threading.current_thread())
        if driver is not None and place in _GATES:
            driver.gate(place)

    def _step(self, what: str, before: World, after: World) -> None:
        if what.startswith("late"):
            (request,) = before.flying - after.flying
            key, data = self._by_request.pop(request)
            with suppress(AlreadyExists):
                self.inner.put_if_absent(key, data)
            return
        if what.endswith("finds the beginning"):
            return
        driver = self.drivers[int(what[0])]
        order = "done"
        for sign, meaning in (("reply lost", "lost"), ("delayed", "late"), ("crashes", "dies"),
                              ("compacts", "compacts"), ("rescales", "rescales")):  # fmt: skip
            if what.endswith(sign):
                order = meaning
        driver.let(order)
        if order == "late":
            # The same one may be on its way already, which the model counts once.
            sent = self.late.pop()
            self._by_request.update(dict.fromkeys(after.flying - before.flying, sent))

    def _differences(self, world: World) -> list[str]:
        wrong: list[str] = []
        for driver, model in zip(self.drivers, world.drivers, strict=True):
            step = "read on" if model.step == "read" else model.step
            if step not in _GATES.get(driver.at, set()):
                wrong.append(f"driver {driver.number} is at {driver.at!r}, the model at {step!r}")
            fence = driver.writer.fence if driver.writer is not None else 0
            if model.step != "end" and fence != model.fence:
                wrong.append(f"driver {driver.number} has fence {fence}, not {model.fence}")
        # What lies before the beginning nobody reads; it may be cleared sooner or later.
        base = max(base_of(world), 1)
        wanted = {
            seq + 1: (entry.kind, entry.fence, entry.checkpoint, _width(entry))
            for seq in range(base, len(world.log) + 1)
            if (entry := lies_at(world, seq)) is not None
        }
        found = {seq: told for seq, told in self._entries().items() if seq > base}
        if found != wanted:
            wrong.append(f"the log is {found}, not {wanted}")
        marks = {(base + (base > 0), to + 1) for base, to in world.moved}
        if self._marks() != marks:
            wrong.append(f"marks are {self._marks()}, not {marks}")
        ids = {manifest[0] for manifest in world.manifests}
        # Deletions of checkpoints are not walked: their manifests stay.
        if not ids <= self._manifests():
            wrong.append(f"manifests are {self._manifests()}, not {ids}")
        return wrong

    def _entries(self) -> dict[int, tuple[str, int, int, int]]:
        return {
            record.seq: _told(record)
            for info in self.inner.list("log/")
            if not info.key.endswith(".moved.json")
            for record in [decode_record(self.inner.get(info.key), info.key)]
        }

    def _marks(self) -> set[tuple[int, int]]:
        keys = (info.key for info in self.inner.list("log/"))
        return {
            (int(key[4:24]), decode_record(self.inner.get(key), key).seq)
            for key in keys
            if key.endswith(".moved.json")
        }

    def _manifests(self) -> set[int]:
        return {checkpoint_id_of(info.key) or 0 for info in self.inner.list("chk-")}


def _width(entry: Entry) -> int:
    # The real entry of a checkpoint has none: its manifest has.
    return entry.width if entry.kind == "rescaled" else 0


def _told(record: Record) -> tuple[str, int, int, int]:
    match record.entry:
        case Fence(fence=fence):
            return "fence", fence, 0, 0
        case Checkpoint(fence=fence, checkpoint_id=one):
            return "checkpoint", fence, one, 0
        case Retire(fence=fence, checkpoint_id=one):
            return "retire", fence, one, 0
        case Rescaled(fence=fence, checkpoint_id=one, parallelism=width):
            return "rescaled", fence, one, width
        case Compacted(fence=fence):
            return "compacted", fence, 0, 0
        case other:
            return type(other).__name__, 0, 0, 0
