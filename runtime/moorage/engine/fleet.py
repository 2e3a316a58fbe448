"""The ranges of a run: where each is served, at which version, how it is saved and brought back.

Decides which state server holds which range, and what an upload may build on; keeps, for each
range, what is needed to open it again: the base checkpoint and the epochs committed since. Called
by the epoch runner (commit, recover) and the checkpointer (snapshot, upload).
"""

import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, TypeVar

from msgspec import UNSET, UnsetType

from moorage.engine.range_access import LeasedRanges, ServerConnection, Servers
from moorage_state.canonicalspec import CanonicalSpec
from moorage_state.errors import Bug, MoorageError, Retryable, StaleLease
from moorage_state.keygroups import KeyGroupRange, owner, range_of
from moorage_state.server.exchange import Answer, exchange
from moorage_state.server.operations import (
    COPY,
    Call,
    Lease,
    OpenResult,
    RangeSpec,
    RangeStats,
    RestoreBase,
    ServerLoad,
    SnapshotWay,
    Uploaded,
    UploadLimits,
    UploadRequest,
    Version,
    WrittenPart,
)
from moorage_state.server.uploads import MOST_SMALL_PACKS
from moorage_state.snapshots import (
    OperatorStateMeta,
    PartEntry,
    PartRef,
    RangeHandle,
    RangeInPart,
    SourceTexts,
    StateMeta,
    worn_packs,
)

RangeId = tuple[str, int]
"""Operator uid and subtask."""

T = TypeVar("T")

_NOTHING = Version(0, "")
_NOWHERE = -1
_ELSEWHERE = 0
"""Stands for what a run was restored from where that is of another store, such as a savepoint."""
_AHEAD = 0
"""Stands for a checkpoint where servers upload what none has asked for."""
_CONNECTING = 16

_LOOK_SECONDS = 1.0
_ANSWER_SECONDS = 10.0
"""What a server may take over a question that needs no work, before it is asked anew."""


StoredRange = RangeHandle | RangeInPart
"""A range of a checkpoint: with its files, or with the part that lists them."""


@dataclass(frozen=True, slots=True)
class ServerShare:
    """What one server wrote of a checkpoint or savepoint.

    Attributes:
        place: its address.
        ranges: of each its operator's uid, its first key group and the sizes of its files.
    """

    place: str
    seconds: float
    objects: int
    bytes_written: int
    ranges: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class FleetUpload:
    """What a checkpoint or savepoint wrote: ranges by operator uid, and what they cost.

    `bytes_written` counts what went into objects, `bytes_inline` what manifest or parts hold.

    Attributes:
        handles: of a checkpoint those whose files a part lists; of a savepoint with all files.
        parts: of a checkpoint, those that were written.
        backend: of a checkpoint, the identifier of the backend whose files they are.
        source_texts: of a checkpoint, what the driver wrote of its source.
        source: of a savepoint, its source, whole.
        shares: who wrote it, in the order of their addresses.
        attempts: at writing the objects: one for each, and one for each request that was repeated.
    """

    handles: Mapping[str, Sequence[StoredRange]]
    objects: int
    bytes_written: int
    bytes_inline: int
    parts: Sequence[PartEntry] = ()
    backend: str = ""
    source_texts: SourceTexts | UnsetType = UNSET
    source: Mapping[str, Any] = field(default_factory=dict)
    shares: tuple[ServerShare, ...] = ()
    attempts: int = 0

    @property
    def bytes_total(self) -> int:
        """The sizes of all files together."""
        return sum(one.bytes_total for some in self.handles.values() for one in some)


@dataclass(frozen=True, slots=True)
class SavedOperator:
    """What the canonical files of an operator declare; `now_ms` is the epoch's processing time."""

    key_types: list[str]
    states: list[StateMeta]
    now_ms: int = 0
    operator_states: Sequence[OperatorStateMeta] = ()


@dataclass(frozen=True, slots=True)
class RangePlaces:
    """Where the ranges of a run are served, for whoever only looks; it never changes.

    Attributes:
        ranges: by operator uid and subtask, the server and the lease.
    """

    parallelism: int
    max_parallelism: int
    ranges: Mapping[RangeId, tuple[int, Lease]]

    def group_range(self, key_group: int) -> KeyGroupRange:
        """The key groups of the subtask that has this one."""
        subtask = owner(key_group, self.parallelism, self.max_parallelism)
        return range_of(subtask, self.parallelism, self.max_parallelism)

    def of(self, uid: str, key_group: int) -> tuple[int, Lease]:
        """The server and the lease of the range that has a key group."""
        return self.ranges[uid, owner(key_group, self.parallelism, self.max_parallelism)]


@dataclass(slots=True)
class _Range:
    """One range of the run."""

    spec: RangeSpec
    server: int
    base: RestoreBase | None = None
    initial_epoch: int = 0
    committed: list[Version] = field(default_factory=list)
    version: Version = _NOTHING
    # The checkpoints whose files it may read, where they need not be here; and the last one that
    # was taken before it was opened: what it is told of that is of another database.
    reads: frozenset[int] = frozenset()
    taken: int = 0


class RangeFleet:
    """All ranges of all operators of a job, under one run at a time.

    Attributes:
        places: where they are, for any thread; None while they are not open.
        max_parallelism: the number of key groups.

    Args:
        servers: the state servers; they say which of them serves a subtask.
        uids: the stateful operators.
        store_url: where checkpoints are read from and written to.
        max_state_size: what a subtask's part of a checkpoint may have in the manifest, where all of
            it has to be there; None where it goes to the store.
        answer_seconds: how long all servers together are waited for where nothing depends on the
            answer of each.
        exchange: makes calls of several servers side by side.
    """

    def __init__(
        self,
        servers: Servers,
        uids: Iterable[str],
        parallelism: int,
        max_parallelism: int,
        store_url: str,
        *,
        max_state_size: int | None = None,
        answer_seconds: float = _ANSWER_SECONDS,
        exchange: Callable[..., dict[int, Answer]] = exchange,
    ) -> None:
        self._servers = servers
        self._exchange = exchange
        self._answer_seconds = answer_seconds
        self._looked = float("-inf")
        self._loads: list[ServerLoad] = []
        self._store_url = store_url
        self._base_url = store_url
        self._uploads = _Uploads(servers)
        self.max_parallelism = max_parallelism
        self._max_state_size = max_state_size
        self._run = ""
        self._taken = 0
        self._logs = False
        self.places: RangePlaces | None = None
        self._clients: dict[int, ServerConnection] = {}
        self._uids = list(uids)
        self._cut(parallelism)

    def resize(self, parallelism: int) -> None:
        """Let go of all ranges; the next `open` is of others, for so many subtasks."""
        self.places = None
        self._release(self._ranges.values())
        self._cut(parallelism)

    def _cut(self, parallelism: int) -> None:
        self._parallelism = parallelism
        self._ranges: dict[RangeId, _Range] = {}
        for uid in self._uids:
            for subtask in range(parallelism):
                groups = range_of(subtask, parallelism, self.max_parallelism)
                spec = RangeSpec(uid, groups.start, groups.end)
                self._ranges[(uid, subtask)] = _Range(spec, _NOWHERE)

    def open(
        self,
        run: str,
        epoch: int,
        handles: Mapping[str, Sequence[StoredRange]],
        checkpoint_id: int,
        base_url: str = "",
        builds: bool = False,  # noqa: FBT001, FBT002  as all of them
    ) -> list[OpenResult]:
        """Lease every range to `run`, from a checkpoint's handles or empty.

        Args:
            epoch: the epoch the checkpoint holds, 0 for a first start.
            handles: by operator uid, those of all its subtasks; none for a new operator.
            checkpoint_id: the checkpoint the handles belong to; 0 for a first start.
            base_url: the store that the handles' keys are of; the lineage's if not given.
            builds: the next checkpoint may reference what this one does.
        """
        self.places = None
        self._place(checkpoint_id)
        self._run = run
        self._logs = builds
        self._base_url = base_url or self._store_url
        stored = _by_key_groups(handles)
        for item in self._ranges.values():
            overlapping = _overlapping(item.spec, stored)
            base = _base(checkpoint_id, epoch, overlapping, builds=builds)
            item.base = base if overlapping else None
            item.initial_epoch = epoch
            item.committed = []
            item.version = Version(epoch, "")
            item.reads = frozenset()
            self._begins(item)
        waiting = self._together(self._open_call, self._ranges.values())
        results = {server: iter(some) for server, some in waiting.items()}
        opened: list[OpenResult] = [next(results[r.server]) for r in self._ranges.values()]
        for item, one in zip(self._ranges.values(), opened, strict=True):
            # With the digest that it has there, where the run that took it has this one's token: a
            # run of another lineage, whose chain of deltas goes on.
            item.version = Version(*one.version)
        self.places = self._published()
        return opened

    def _published(self) -> RangePlaces:
        places = {key: (item.server, self._lease(item)) for key, item in self._ranges.items()}
        return RangePlaces(self._parallelism, self.max_parallelism, places)

    def recover(self) -> list[int]:
        """Restart dead servers and open what they served at its committed version; returns which.

        Raises:
            VersionGone: the volume no longer has what is needed; the job must be rewound.
        """
        answering = self._answering()
        restarted = self._servers.ensure_alive(answering)
        self._connect(set(self._clients) - (answering - set(restarted)))
        looks = self._ask(Call("stats"))
        well = {
            (stats.uid, stats.start, index)
            for index, found in looks.items()
            for stats in found
            if not stats.error and stats.run == self._run
        }
        lost = [
            item
            for item in self._ranges.values()
            if (item.spec.uid, item.spec.start, item.server) not in well
        ]
        for item in lost:
            self._begins(item)
        self._each(self._open_call, lost)
        return restarted

    def _begins(self, item: _Range) -> None:
        """A range is about to be opened from its base, if it is not open after all."""
        item.taken = self._taken
        if item.base is not None:
            own = self._base_url == self._store_url
            item.reads |= {item.base.checkpoint_id if own else _ELSEWHERE}

    @property
    def reads_from(self) -> frozenset[int]:
        """The checkpoints whose files ranges may still read; for any thread."""
        return self._read - {_ELSEWHERE}

    @property
    def reads_elsewhere(self) -> bool:
        """Whether ranges may still read what they were restored from, of another store.

        For any thread.
        """
        return _ELSEWHERE in self._read

    @property
    def _read(self) -> frozenset[int]:
        return frozenset().union(*(item.reads for item in list(self._ranges.values())))

    def leased(self, uid: str) -> LeasedRanges:
        """The ranges of an operator, by subtask, at their committed versions."""
        mine = [self._ranges[uid, subtask] for subtask in range(self._parallelism)]
        doors = {index: self._servers.door(index) for index in {r.server for r in mine}}
        places = ((r.spec.start, r.server, r.version) for r in mine)
        return LeasedRanges(uid, self._run, doors, places)

    def commit(self, epoch: int, digests: Mapping[RangeId, str]) -> None:
        """Make the acknowledged deltas the state of every range; idempotent.

        Raises:
            VersionGone: a server is gone, and so is what was prepared; the job must be rewound.
        """
        if set(digests) != set(self._ranges):
            raise Bug(f"an epoch commits all ranges or none: epoch={epoch} got={sorted(digests)}")
        for key, item in self._ranges.items():
            version = Version(epoch, digests[key])
            item.committed.append(version)
            item.version = version
        try:
            self._commit()
        # What was prepared is on the volume of the server that is gone: it is brought back first.
        except (Retryable, StaleLease):
            self.recover()
            self._commit()

    def snapshot(self, checkpoint_id: int, way: SnapshotWay = COPY, base_id: int = 0) -> float:
        """Hard-link every range at its committed version; returns the longest pause in seconds.

        Args:
            way: see `RangeApi.snapshot`, and for `base_id`.
        """
        self._logs = self._logs or way != COPY
        self._taken = checkpoint_id
        results = self._each(
            lambda r: Call("snapshot", (checkpoint_id, r.version, way, base_id), self._lease(r)),
            self._ranges.values(),
        )
        return max((r.seconds for r in results), default=0.0)

    def upload(self, checkpoint_id: int, base: Mapping[str, Sequence[StoredRange]]) -> FleetUpload:
        """Bring to the store what a snapshot has and the base lacks; epochs go on meanwhile.

        Args:
            base: by operator uid, the ranges of a retained checkpoint that was notified.

        Raises:
            StateSizeExceeded: all files have to be in the parts, and do not fit.
        """
        run, ranges = self._run, self._ranges.values()
        # What parts list, servers read and weigh themselves.
        handles = (h for some in base.values() for h in some if isinstance(h, RangeHandle))
        whole = (file for handle in handles for file in handle.files)
        worn = worn_packs(whole, MOST_SMALL_PACKS * len({item.server for item in ranges}))
        by_server: dict[int, list[UploadRequest]] = {}
        parts: dict[int, dict[PartRef, None]] = {}
        stored = _by_key_groups(base)
        for item in ranges:
            found = _overlapping(item.spec, stored)
            listed = [one for one in found if isinstance(one, RangeInPart)]
            own = (f for one in found if isinstance(one, RangeHandle) for f in one.files)
            files = [f for f in own if f.shared and f.key and f.key not in worn]
            uid = listed[0].stored_uid if listed else ""
            request = UploadRequest(item.spec.uid, item.spec.start, files, uid)
            by_server.setdefault(item.server, []).append(request)
            parts.setdefault(item.server, {}).update((one.part, None) for one in listed)
        limits = UploadLimits(max_state_size=self._max_state_size)

        shares: list[ServerShare] = []

        def upload(server: int, client: ServerConnection) -> WrittenPart:
            given, began = by_server[server], time.monotonic()
            written = client.upload_many(
                run, checkpoint_id, self._store_url, given, limits, list(parts[server])
            )
            ranges = tuple((uid, start, size) for uid, start, _, size in written.ranges)
            cost = written.objects, written.bytes_written + written.bytes_inline
            shares.append(self._share(server, began, *cost, ranges))
            return written

        done = _parts_together(self._uploads.run(checkpoint_id, upload, by_server))
        return replace(done, shares=tuple(sorted(shares, key=attrgetter("place"))))

    def _share(
        self,
        server: int,
        began: float,
        objects: int,
        bytes_written: int,
        ranges: tuple[tuple[str, int, int], ...],
    ) -> ServerShare:
        seconds = time.monotonic() - began
        place = self._servers.door(server).address
        return ServerShare(place, seconds, objects, bytes_written, ranges)

    def persist(self, least_bytes: int) -> FleetUpload:
        """Have servers upload deltas of so many bytes that no checkpoint lists yet."""
        run, limits = self._run, UploadLimits()
        by_server: dict[int, list[RangeSpec]] = {}
        for item in self._ranges.values():
            by_server.setdefault(item.server, []).append(item.spec)

        def persist(server: int, client: ServerConnection) -> Uploaded:
            return client.persist_many(run, self._store_url, by_server[server], limits, least_bytes)

        return _together(self._uploads.run(_AHEAD, persist, by_server))

    def materialize(self, checkpoint_id: int) -> FleetUpload:
        """Bring the copies that were taken with a checkpoint to the store, beside the epochs."""
        run, limits = self._run, UploadLimits()
        by_server: dict[int, list[RangeSpec]] = {}
        for item in self._ranges.values():
            by_server.setdefault(item.server, []).append(item.spec)

        def materialize(server: int, client: ServerConnection) -> Uploaded:
            ranges = by_server[server]
            return client.materialize_many(run, checkpoint_id, self._store_url, ranges, limits)

        return _together(self._uploads.run(checkpoint_id, materialize, by_server))

    def save(
        self,
        checkpoint_id: int,
        epoch: int,
        url: str,
        operators: Mapping[str, SavedOperator],
        *,
        canonical: bool,
        told: Callable[[int, int], object] = lambda _done, _of: None,
    ) -> FleetUpload:
        """Bring all of a snapshot into a savepoint's own directory; epochs go on meanwhile.

        Args:
            epoch: the last epoch it contains.
            operators: by operator uid, what canonical files declare.
            told: of how many servers are done, of how many; from any thread.
        """
        run = self._run
        by_server: dict[int, list[CanonicalSpec]] = {}
        for item in self._ranges.values():
            operator = operators[item.spec.uid]
            spec = CanonicalSpec(
                uid=item.spec.uid,
                start=item.spec.start,
                end=item.spec.end,
                epoch=epoch,
                max_parallelism=self.max_parallelism,
                key_types=tuple(operator.key_types),
                states=tuple(operator.states),
                operator_states=tuple(operator.operator_states),
                now_ms=operator.now_ms,
            )
            by_server.setdefault(item.server, []).append(spec)

        shares: list[ServerShare] = []
        telling = threading.Lock()

        def save(server: int, client: ServerConnection) -> Uploaded:
            began = time.monotonic()
            saved = client.save_many(run, checkpoint_id, url, by_server[server], canonical)
            ranges = tuple((one.uid, one.start, one.bytes_total) for one in saved.handles)
            cost = saved.objects, saved.bytes_written + saved.bytes_inline
            with telling:
                shares.append(self._share(server, began, *cost, ranges))
                told(len(shares), len(by_server))
            return saved

        told(0, len(by_server))
        done = _together(self._uploads.run(checkpoint_id, save, by_server))
        return replace(done, shares=tuple(sorted(shares, key=attrgetter("place"))))

    def complete(
        self, checkpoint_id: int, epoch: int, handles: Mapping[str, Sequence[StoredRange]]
    ) -> None:
        """A checkpoint was completed: from now on ranges are brought back from it."""
        stored = _by_key_groups(handles)
        for item in self._ranges.values():
            item.base = _base(
                checkpoint_id, epoch, _overlapping(item.spec, stored), builds=self._logs
            )
            item.committed = [v for v in item.committed if v.epoch > epoch]
        self._base_url = self._store_url
        told = self._ask(Call("notify_complete", (checkpoint_id, self._run)))
        for item in self._ranges.values():
            if checkpoint_id > item.taken:
                # One that does not answer may hear of it all the same, at any time.
                before: frozenset[int] = frozenset() if item.server in told else item.reads
                item.reads = before | {checkpoint_id}

    def aborted(self, checkpoint_id: int) -> None:
        """A checkpoint failed: its uploads end, and its local copies can go."""
        self._ask(Call("notify_aborted", (checkpoint_id, self._run)))
        self._uploads.end(checkpoint_id)

    def abandon(self, checkpoint_ids: Iterable[int]) -> None:
        """The run ends and these checkpoints with it."""
        # Nobody waits for hosts that are gone.
        self._close_gone()
        self._uploads.end(_AHEAD)
        for checkpoint_id in checkpoint_ids:
            self.aborted(checkpoint_id)

    def stats(self) -> list[RangeStats]:
        """A look at all ranges; those of a server that does not answer are left out."""
        found = self._ask(Call("stats"))
        return [stats for index in sorted(found) for stats in found[index]]

    @property
    def state_bytes(self) -> int:
        """Size of the live state of all ranges, about, as it was a few epochs ago."""
        return sum(load.state_bytes for load in self._loads)

    def look(self) -> dict[RangeId, tuple[RangeSpec, str, int]]:
        """Each range: what it is, the address of its server, and its state as `state_bytes`."""
        sizes = {(uid, start): size for load in self._loads for uid, start, size in load.sizes}
        addresses = {
            index: self._servers.door(index).address
            for index in {item.server for item in self._ranges.values()}
        }
        return {
            key: (item.spec, addresses[item.server], sizes.get((item.spec.uid, item.spec.start), 0))
            for key, item in self._ranges.items()
        }

    @property
    def crowded(self) -> bool:
        """Whether a volume is so full of what no checkpoint has that it is time for one."""
        return any(load.crowded for load in self._loads)

    def _commit(self) -> None:
        now = time.monotonic()
        looks = now - self._looked >= _LOOK_SECONDS
        # Before the commits: servers are at work on them afterwards, and would answer late.
        first = [Call("load")] if looks else []

        def commit(item: _Range) -> Call:
            return Call("commit", tuple(item.version), self._lease(item))

        answers = self._together(commit, self._ranges.values(), first)
        if looks:
            self._looked = now
            self._loads = [results[0] for results in answers.values()]

    def close(self) -> None:
        """Release every lease and close the connections."""
        self.places = None
        self._release(self._ranges.values())
        for client in self._clients.values():
            client.close()

    def refuse_lost(self) -> None:
        """See `Servers.refuse_lost`."""
        self._servers.refuse_lost()

    def wants_to_move(self, *, busy: bool = False) -> bool:
        """See `Servers.wants_to_move`."""
        return self._servers.wants_to_move(busy=busy)

    def _place(self, checkpoint_id: int) -> None:
        """Ask where ranges belong now, and let go of them where they were before."""
        subtasks, groups = range(self._parallelism), self.max_parallelism
        by_subtask = [range_of(subtask, len(subtasks), groups) for subtask in subtasks]
        wanted = self._servers.place(by_subtask, checkpoint_id)
        # Nobody waits for hosts that are gone.
        self._close_gone()
        moving = {k: r for k, r in self._ranges.items() if r.server != wanted[k[1]]}
        self._release(moving.values())
        for (_, subtask), item in moving.items():
            item.server = wanted[subtask]
        for index in set(self._clients) - set(wanted):
            self._clients.pop(index).close()
        self._connect(set(wanted) - self._answering())

    def _connect(self, indices: Collection[int]) -> None:
        """Connect to servers anew, some at a time: each has to be greeted."""

        def connect(index: int) -> None:
            if index in self._clients:
                self._clients[index].close()
            self._clients[index] = self._servers.connect(index)

        if indices:
            with ThreadPoolExecutor(min(_CONNECTING, len(indices)), "connect") as pool:
                for made in [pool.submit(connect, index) for index in sorted(indices)]:
                    made.result()

    def _close_gone(self) -> None:
        """Close the connections to servers whose hosts are gone: whoever waits for one is freed."""
        gone = self._gone()
        for index in gone & set(self._clients):
            self._clients.pop(index).close()
        self._uploads.close_gone(gone)

    def _gone(self) -> frozenset[int]:
        try:
            return self._servers.gone()
        except MoorageError:
            return frozenset()  # that nobody can be asked for them is found out by the others

    def _release(self, items: Iterable[_Range]) -> None:
        # One that cannot be closed well keeps no other open.
        calls: dict[int, list[Call]] = {}
        for item in items:
            call = Call("release_range", (self._lease(item),))
            calls.setdefault(item.server, []).append(call)
        self._asked(calls)

    def _answering(self) -> set[int]:
        """The servers that answer on the connections there are."""
        return set(self._ask(Call("ping")))

    def _ask(self, call: Call) -> dict[int, Any]:
        """What the servers answer; those that fail or take too long are left out."""
        answers = self._asked({index: [call] for index in self._clients})
        return {i: answer.results[0] for i, answer in answers.items() if answer.error is None}

    def _asked(self, calls: Mapping[int, list[Call]]) -> dict[int, Answer]:
        """Make calls whose failure is no error here; who takes too long is not waited for."""
        # Who needs a server that was not asked, or did not answer, finds out if it is there.
        clients, gone = dict(self._clients), self._gone()
        there = [index for index in calls if index in clients and index not in gone]
        asked = {index: (clients[index], calls[index]) for index in there}
        return self._exchange(asked, seconds=self._answer_seconds, keep_going=True)

    def _open_call(self, item: _Range) -> Call:
        arguments = (self._run, item.base, item.committed, self._base_url, item.initial_epoch)
        return Call("open_range", (item.spec, *arguments))

    def _lease(self, item: _Range) -> Lease:
        return item.spec.lease(self._run)

    def _each(self, call: Callable[[_Range], Call], items: Iterable[_Range]) -> list[Any]:
        """Call something of every range, see `_together`."""
        return [result for some in self._together(call, items).values() for result in some]

    def _together(
        self, call: Callable[[_Range], Call], items: Iterable[_Range], first: Sequence[Call] = ()
    ) -> dict[int, list[Any]]:
        """Call something of every range, each server with one message; raises the first error.

        Args:
            first: what each server is asked before.
        """
        calls: dict[int, list[Call]] = {}
        for item in items:
            calls.setdefault(item.server, [*first]).append(call(item))
        answers = self._exchange({i: (self._clients[i], some) for i, some in calls.items()})
        for answer in answers.values():
            if answer.error is not None:
                raise answer.error
        return {index: answer.results for index, answer in answers.items()}


@dataclass(slots=True, eq=False)
class _UnderWay:
    """An upload, and its connection to each server."""

    checkpoint_id: int
    clients: dict[int, ServerConnection] = field(default_factory=dict)
    ended: bool = False


class _Uploads:
    """Uploads that are under way, beside the epochs: each on connections of its own."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._lock = threading.Lock()
        self._under_way: list[_UnderWay] = []

    def end(self, checkpoint_id: int) -> None:
        """Close the connections of an upload: what waits for it ends with an error."""
        with self._lock:
            found = [way for way in self._under_way if way.checkpoint_id == checkpoint_id]
            for way in found:
                way.ended = True
            clients = [client for way in found for client in way.clients.values()]
        for client in clients:
            client.close()

    def close_gone(self, gone: Container[int]) -> None:
        """Close the connections to servers that are gone, of all uploads."""
        with self._lock:
            held = [one for way in self._under_way for one in way.clients.items()]
        for server, client in held:
            if server in gone:
                client.close()

    def run(
        self,
        checkpoint_id: int,
        action: Callable[[int, ServerConnection], T],
        servers: Collection[int],
    ) -> list[T]:
        """Servers side by side, each over a connection of its own; the first error ends all."""
        way = _UnderWay(checkpoint_id)

        def one_server(server: int) -> T:
            client = self._servers.connect(server)
            try:
                with self._lock:
                    if way.ended:
                        raise Retryable(f"upload was stopped: checkpoint={checkpoint_id}")
                    way.clients[server] = client
                return action(server, client)
            finally:
                client.close()

        with self._lock:
            self._under_way.append(way)
        try:
            with ThreadPoolExecutor(max_workers=max(1, len(servers))) as pool:
                futures = [pool.submit(one_server, server) for server in servers]
                done, others = wait(futures, return_when=FIRST_EXCEPTION)
                if others:
                    self.end(checkpoint_id)
                    raise next(error for future in done if (error := future.exception()))
                return [future.result() for future in futures]
        finally:
            with self._lock:
                self._under_way.remove(way)


_Stored = Mapping[str, tuple[list[int], list[StoredRange]]]


def _by_key_groups(stored: Mapping[str, Iterable[StoredRange]]) -> _Stored:
    """By operator, the ranges in order, and where each begins."""
    found = {uid: sorted(some, key=lambda one: one.start) for uid, some in stored.items()}
    return {uid: ([one.start for one in some], some) for uid, some in found.items()}


def _overlapping(spec: RangeSpec, stored: _Stored) -> list[StoredRange]:
    starts, ranges = stored.get(spec.uid, ([], []))
    # Ranges of one checkpoint do not overlap: of those that begin before, the last may reach in.
    first = max(0, bisect_right(starts, spec.start) - 1)
    some = ranges[first : bisect_right(starts, spec.end)]
    return [one for one in some if one.end >= spec.start]


def _base(
    checkpoint_id: int, epoch: int, stored: Iterable[StoredRange], *, builds: bool
) -> RestoreBase:
    """What a range is restored from: handles, or the parts that have them."""
    stored = list(stored)
    handles = [one for one in stored if isinstance(one, RangeHandle)]
    listed = [one for one in stored if isinstance(one, RangeInPart)]
    parts = list(dict.fromkeys(one.part for one in listed))
    uid = listed[0].stored_uid if listed else ""
    return RestoreBase(checkpoint_id, epoch, handles, parts, uid, builds)


def _parts_together(written: list[WrittenPart]) -> FleetUpload:
    handles: dict[str, list[StoredRange]] = {}
    for one in written:
        ref = one.part.ref
        for uid, start, end, size in one.ranges:
            place = RangeInPart(uid, start, end, size, ref, uid)
            handles.setdefault(uid, []).append(place)
    return FleetUpload(
        handles,
        objects=sum(one.objects for one in written),
        bytes_written=sum(one.bytes_written for one in written),
        bytes_inline=sum(one.bytes_inline for one in written),
        parts=[one.part for one in written],
        backend=next((one.backend for one in written), ""),
        attempts=sum(one.attempts for one in written),
    )


def _together(uploads: list[Uploaded]) -> FleetUpload:
    handles: dict[str, list[StoredRange]] = {}
    for handle in (handle for upload in uploads for handle in upload.handles):
        handles.setdefault(handle.uid, []).append(handle)
    return FleetUpload(
        handles,
        objects=sum(upload.objects for upload in uploads),
        bytes_written=sum(upload.bytes_written for upload in uploads),
        bytes_inline=sum(upload.bytes_inline for upload in uploads),
        attempts=sum(upload.attempts for upload in uploads),
    )
