"""`KeyedHarness`: one function over a keyed stream, tested without Spark.

What Flink's KeyedOneInputStreamOperatorTestHarness is there. Called by the tests of jobs; the
function runs in the engine's own subtasks, on state as jobs have it, see `in_process`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import chain
from typing import Any, Self

import msgspec

from moorage.api.functions import MAX_WATERMARK, KeyedProcessFunction, OutputTag
from moorage.api.streams import DataStream, KeyedStream
from moorage.engine.event_time import InputClock, InputTime, JobClocks, SourceTime
from moorage.engine.range_access import BoundRange
from moorage.engine.rows import TupleReader
from moorage.testing.environment import TestEnvironment
from moorage.testing.in_process import Collector, InProcessJob, Snapshot
from moorage.testing.replay import Replay
from moorage_state.canonical.hashing import key_groups
from moorage_state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from moorage_state.errors import UserError
from moorage_state.keyed import KeyedStateStore, TimeDomain
from moorage_state.keyed.schema import StateSchema
from moorage_state.keygroups import KeyGroupRange, owner, range_of
from moorage_state.keylayout import (
    EVENT_TIMERS,
    KEY_AT,
    KEYED_STATE,
    PROCESSING_TIMERS,
    key_prefix,
    prefix_of,
    timer_parts,
)
from moorage_state.keys import KeyCodec
from moorage_state.timetolive import StateTtlConfig

_UID, _INPUT, _GIVEN = "function", "rows", "given"
Applied = Callable[[KeyedStream], DataStream]
"""Makes of a keyed stream what is tested, such as `lambda s: s.window(...).aggregate(...)`."""

_ALL = 1 << 31
_KINDS = {TimeDomain.EVENT_TIME: EVENT_TIMERS, TimeDomain.PROCESSING_TIME: PROCESSING_TIMERS}


@dataclass(frozen=True, slots=True)
class _Setting:
    """What a harness was made with."""

    schema: str
    key_by: tuple[str, ...]
    output: str
    event_time: str | None
    max_delay: str | None
    options: dict[str, Any]
    max_parallelism: int


class KeyedHarness:
    """Feeds a function rows and time, and shows what it sends and keeps; a context manager.

    Each `process` is one epoch, committed; what has no row and no time in it costs nothing.

    Args:
        function: a `KeyedProcessFunction` or a `KeyedBatchFunction`; as in a job each subtask has a
            copy of it in each epoch. Or what makes one operator of a keyed stream: windows,
            `deduplicate`, ...; then `output` and `options` are its own.
        schema: DDL of the rows that it is fed.
        key_by: the key's column, or several.
        output: DDL of what it yields.
        event_time: the column of event time. The watermark is what `process_watermark` says; with
            `max_delay` it follows the rows as in a job.
        now_ms: processing time at the begin.
        options: further arguments of `KeyedStream.process`, such as `side_outputs`.

    Raises:
        UserError: as `KeyedStream.process` does.
    """

    def __init__(
        self,
        function: KeyedProcessFunction | Applied,
        schema: str,
        key_by: str | Sequence[str],
        output: str = "",
        *,
        event_time: str | None = None,
        max_delay: str | None = None,
        parallelism: int = 1,
        max_parallelism: int = 128,
        now_ms: int = 0,
        restore: Snapshot | None = None,
        **options: Any,
    ) -> None:
        keys = (key_by,) if isinstance(key_by, str) else tuple(key_by)
        self._setting = _Setting(
            schema, keys, output, event_time, max_delay, options, max_parallelism
        )
        self._function = function
        self._now_ms = max(now_ms, restore.now_ms if restore else 0)
        self._sent: dict[str, list[Any]] = {}
        self._job: InProcessJob
        self._uid = _UID
        self._open(function, parallelism, restore)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End it; idempotent. Snapshots that were taken stay."""
        self._job.close()

    # -- rows and time ---------------------------------------------------------------------

    def process(self, *rows: Any) -> list[Any]:
        """Run an epoch over rows, tuples or dicts; what the function yielded, as named tuples.

        Raises:
            UserError: a row does not fit the stream.
            Exception: what the function raised, with a note that names the key.
        """
        self._job.epoch({_INPUT: rows})
        return self._collect()

    def process_watermark(self, timestamp: int) -> list[Any]:
        """Let event time have come so far; what timers sent.

        Raises:
            UserError: no event time is declared, rows move the watermark, or it would go back.
        """
        runner = self._job.runner
        if self._setting.event_time is None or self._setting.max_delay is not None:
            raise UserError(
                "a watermark is given where event_time is declared and max_delay is not: "
                f"event_time={self._setting.event_time} max_delay={self._setting.max_delay}"
            )
        if timestamp < self.current_watermark():
            raise UserError(
                f"a watermark does not go back: given={timestamp} is={self.current_watermark()}"
            )
        reached = InputTime(SourceTime(timestamp + 1))
        runner.watermarks = replace(runner.watermarks, inputs={_GIVEN: reached})
        return self.process()

    def set_processing_time(self, now_ms: int) -> list[Any]:
        """Let it be so late, in milliseconds; what timers sent.

        Raises:
            UserError: it would go back.
        """
        if now_ms < self._now_ms:
            raise UserError(f"processing time does not go back: given={now_ms} is={self._now_ms}")
        self._now_ms = now_ms
        return self.process()

    def end_input(self) -> list[Any]:
        """Let the input end: every event-time timer fires; what they sent."""
        self._job.runner.watermarks = self._job.runner.watermarks.drain()
        return self.process()

    def current_watermark(self) -> int:
        """The watermark of the next epoch; `NO_WATERMARK` before the first."""
        return self._job.runner.watermarks.of(self._uid)

    # -- what came of it -------------------------------------------------------------------

    @property
    def output(self) -> list[Any]:
        """All that the function has sent to its main output, as named tuples."""
        return list(self._sent[""])

    def side_output(self, tag: OutputTag | str) -> list[Any]:
        """All that it has sent to a side output.

        Raises:
            UserError: it declares no such side output.
        """
        name = tag.name if isinstance(tag, OutputTag) else tag
        if name not in self._sent or not name:
            declared = sorted(set(self._sent) - {""})
            raise UserError(f"no such side output: side_output={name!r} declared={declared}")
        return list(self._sent[name])

    def keys(self) -> list[Any]:
        """The keys that have state or timers, in the order of their key groups."""
        found: dict[Any, None] = {}
        codec = self._codec
        for bound, groups in self._subtasks():
            for _, raw in _stored_keys(bound, groups):
                found[_bare(codec.decode(raw))] = None
        return list(found)

    def state(self, name: str, key: Any, namespace: tuple[Any, ...] | None = None) -> Any:
        """What a key has in a state, as committed: a value, a list, a dict; None for nothing.

        Of a reducing state what its values were reduced to, of an aggregating one the accumulator.

        Args:
            namespace: for a state that has them, such as the (start, end) of a window.

        Raises:
            UserError: no state of this name was declared; or it has namespaces and none is given.
        """
        schemas = {schema.name: schema for schema in self._job.runner.schemas.get(self._uid, ())}
        if name not in schemas:
            raise UserError(f"no such state: state={name} known={sorted(schemas)}")
        schema = schemas[name]
        if bool(schema.namespace_types) != (namespace is not None):
            has = ", ".join(schema.namespace_types) or "none"
            raise UserError(f"a state has namespaces or not: state={name} namespaces={has}")
        group, raw = self._place(key)
        count, most = self._job.planner.parallelism, self._setting.max_parallelism
        subtask = owner(group, count, most)
        runner = self._job.runner
        read_as = _descriptor(schema)
        known = msgspec.structs.replace(schema, kind=read_as.kind)
        store = KeyedStateStore(
            self._job.ranges(self._uid)[subtask],
            runner.epoch + 1,
            [known],
            now_ms=self._now_ms,
            groups=range_of(subtask, count, most),
        )
        if namespace is None:
            handle = store.state(read_as)
        else:
            handle = store.namespaced_state(read_as, schema.namespace_types)
        store.begin_chunk([key_prefix(group, raw)])
        store.switch_to(0)
        if namespace is not None:
            handle = handle.set_current_namespace(namespace)
        return _read(schema, handle)

    def timers(self, key: Any, domain: TimeDomain = TimeDomain.EVENT_TIME) -> list[int]:
        """The times for which a key has timers, in order."""
        wanted = self._place(key)
        return [time for group, time, raw in self._timers(domain) if (group, raw) == wanted]

    def num_timers(self, domain: TimeDomain = TimeDomain.EVENT_TIME) -> int:
        """How many timers there are of all keys."""
        return sum(1 for _ in self._timers(domain))

    # -- crashes, snapshots, other sizes and other versions --------------------------------

    def crash_and_replay(self, *rows: Any) -> list[Any]:
        """Run an epoch, forget it as a crash would, and run it again; what it yielded.

        The second attempt is fed row by row and has its clock on another day. Then it is committed.

        Raises:
            NotDeterministic: it sent other rows, or changed state otherwise; the message says of
                which key, and what.
        """
        planner = self._job.planner
        planner.rehearse = Replay(self._collectors, {self._uid: self._types})
        try:
            return self.process(*rows)
        finally:
            del planner.rehearse

    def snapshot(self) -> Snapshot:
        """A checkpoint, for `restore` here or for a new harness."""
        return self._job.snapshot()

    def restore(
        self,
        snapshot: Snapshot,
        *,
        function: KeyedProcessFunction | Applied | None = None,
        parallelism: int | None = None,
    ) -> None:
        """Go back to a snapshot, with another function or number of subtasks if they are given.

        What was sent stays, processing time too.

        Raises:
            UserError: the function cannot read what the snapshot has, in the next epoch.
        """
        wanted = parallelism or snapshot.parallelism
        self._job.close()
        self._open(function or self._function, wanted, snapshot)

    def rescale(self, parallelism: int) -> None:
        """Go on with another number of subtasks."""
        self.restore(self.snapshot(), parallelism=parallelism)

    def upgrade(self, function: KeyedProcessFunction | Applied) -> None:
        """Go on with another version of the function, whose states may have other types."""
        self.restore(self.snapshot(), function=function)

    # ----------------------------------------------------------------------------------------

    def _open(
        self, function: KeyedProcessFunction | Applied, parallelism: int, restore: Snapshot | None
    ) -> None:
        given = self._setting
        env = TestEnvironment()
        stream = env.read_stream(_INPUT, "rows", schema=given.schema)
        if given.event_time is not None:
            stream = stream.with_event_time(given.event_time, given.max_delay or "0s")
        keyed = stream.key_by(*given.key_by)
        made = (
            keyed.process(function, uid=_UID, output=given.output, **given.options)
            if isinstance(function, KeyedProcessFunction)
            else function(keyed)
        )
        if len(env.graph.operators) != 1:
            raise UserError(
                f"a harness has one operator: uids={[o.uid for o in env.graph.operators]}; "
                f"test others in harnesses of their own, or the job with run_job"
            )
        (operator,) = env.graph.operators
        self._uid = operator.uid
        self._types = operator.key_types
        self._codec = KeyCodec(self._types)
        self._collectors = {"": Collector()}
        self._readers = {"": TupleReader(made.schema.names)}
        _attach(made, "main", self._collectors[""])
        for number, side in enumerate(operator.side_outputs):
            self._collectors[side.name] = Collector()
            self._readers[side.name] = TupleReader(side.schema.names)
            tag = OutputTag(side.name)
            _attach(made.get_side_output(tag), f"s{number}", self._collectors[side.name])
        for name in self._collectors:
            self._sent.setdefault(name, [])
        clocks = None
        if given.event_time is not None and given.max_delay is None:
            # Counted by value, so that no row of a key tells how far time has come.
            clocks = JobClocks(
                {_GIVEN: InputClock(per=_GIVEN)},
                {self._uid: ("",)},
                {self._uid: frozenset({_GIVEN})},
            )
        self._job = InProcessJob(
            env.graph,
            clock=lambda: self._now_ms,
            parallelism=parallelism,
            max_parallelism=given.max_parallelism,
            clocks=clocks,
            restore=restore,
        )
        self._function = function

    def _collect(self) -> list[Any]:
        found: list[Any] = []
        for name, collector in self._collectors.items():
            rows = list(chain.from_iterable(map(self._readers[name].rows, collector.take())))
            self._sent[name] += rows
            if not name:
                found = rows
        return found

    def _place(self, key: Any) -> tuple[int, bytes]:
        columns = key if isinstance(key, tuple) else (key,)
        (group,) = key_groups(self._types, self._setting.max_parallelism)([columns])
        return group, self._codec.encode(columns)

    def _subtasks(self) -> Iterator[tuple[BoundRange, KeyGroupRange]]:
        """By subtask, its range to be read, and its key groups."""
        count, most = self._job.planner.parallelism, self._setting.max_parallelism
        for subtask, bound in enumerate(self._job.ranges(self._uid)):
            yield bound, range_of(subtask, count, most)

    def _timers(self, domain: TimeDomain) -> Iterator[tuple[int, int, bytes]]:
        """All of a kind: key group, time, key; those of a subtask by time."""
        for bound, _ in self._subtasks():
            for entry in bound.due_timers(MAX_WATERMARK, _ALL, b"", _KINDS[domain]):
                yield timer_parts(entry)


def _attach(stream: DataStream, uid: str, collector: Collector) -> None:
    sink: Any = collector
    stream.sink_to(sink, uid=uid)


def _bare(key: tuple[Any, ...]) -> Any:
    """A key of one column is its value."""
    return key[0] if len(key) == 1 else key


def _stored_keys(bound: BoundRange, groups: KeyGroupRange) -> Iterator[tuple[int, bytes]]:
    """Key group and key of all state and timers of a range."""
    for group in range(groups.start, groups.end + 1):
        for kind in (KEYED_STATE, EVENT_TIMERS, PROCESSING_TIMERS):
            prefix = group.to_bytes(2, "big") + bytes([kind])
            (scan,) = bound.scan_many([prefix], _ALL, _ALL)
            for entry in scan.keys:
                state = kind == KEYED_STATE
                yield group, prefix_of(entry)[KEY_AT:] if state else timer_parts(entry)[2]


def _descriptor(schema: StateSchema) -> StateDescriptor:
    """What reads a state as it is stored: of what combines values, what they came to."""
    ttl = None
    if schema.ttl_ms is not None:
        ttl = StateTtlConfig(
            timedelta(milliseconds=schema.ttl_ms),
            cleanup_in_background=schema.indexed_ms is not None,
            cleanup_in_full_snapshot=schema.cleanup_in_full_snapshot,
        )
    if schema.kind == "list":
        return ListStateDescriptor(schema.name, schema.type, ttl=ttl)
    if schema.kind == "map":
        return MapStateDescriptor(schema.name, schema.key_type, schema.type, ttl=ttl)
    return ValueStateDescriptor(schema.name, schema.type, ttl=ttl)


def _read(schema: StateSchema, handle: Any) -> Any:
    if schema.kind == "list":
        return list(handle.get())
    if schema.kind == "map":
        return dict(handle.items())
    return handle.value()
