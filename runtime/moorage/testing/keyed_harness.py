"""`KeyedHarness`: one function over a keyed stream, tested without Spark.

What Flink's KeyedOneInputStreamOperatorTestHarness is there. Called by the tests of jobs; the
function runs in the engine's own subtasks, on state as jobs have it, see `in_process`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from itertools import chain
from typing import Any, Literal, Self

from moorage.api.declarations import misfit_of
from moorage.api.functions import KeyedProcessFunction, OutputTag
from moorage.api.misplaced import calls_explained
from moorage.api.streams import DataStream, KeyedStream
from moorage.engine.event_time import InputClock, InputTime, JobClocks, SourceTime, Watermarks
from moorage.engine.rows import TupleReader
from moorage.testing.committed_state import CommittedState
from moorage.testing.environment import TestEnvironment
from moorage.testing.in_process import (
    LAST_MS,
    Collector,
    InProcessJob,
    Snapshot,
    require_snapshot,
    require_whole,
)
from moorage.testing.replay import Replay
from moorage_state.descriptors import MapStateDescriptor
from moorage_state.errors import UserError
from moorage_state.keyed import TimeDomain

# What is tested may have any other uid.
_UID, _INPUT, _SECOND, _BROADCAST = "function", "given.rows", "given.second", "given.broadcast"
_MOST_ROWS = 1 << 20
_INPUT_OF = {"first": _INPUT, "second": _SECOND}
Applied = Callable[..., DataStream]
"""Makes of a keyed stream what is tested, such as `lambda s: s.window(...).aggregate(...)`, or of
two."""


@dataclass(frozen=True, slots=True)
class SecondStream:
    """The second stream of a harness for what has two: its rows, key and event time."""

    schema: str
    key_by: str | Sequence[str]
    event_time: str | None = None


@dataclass(frozen=True, slots=True)
class _Setting:
    """What a harness was made with."""

    schema: str
    key_by: str | Sequence[str]
    output: str
    event_time: str | None
    max_delay: str | None
    broadcast: str
    broadcast_states: tuple[MapStateDescriptor, ...]
    second: Any
    options: dict[str, Any]
    max_parallelism: int
    batch_rows: int


@dataclass(frozen=True, slots=True)
class _Running:
    """One version of the function, at work.

    Attributes:
        collectors: by side output, "" for the main one, where its rows arrive.
        readers: makes named tuples of them.
    """

    function: KeyedProcessFunction | Applied
    uid: str
    job: InProcessJob
    state: CommittedState
    collectors: dict[str, Collector]
    readers: dict[str, TupleReader]


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
        batch_rows: how many rows a `KeyedBatchFunction` gets in one call, at the most.
        broadcast: DDL of the rows of the broadcast stream of a `KeyedBroadcastProcessFunction`.
        broadcast_states: the descriptors of the states that these rows build up.
        second: the other stream of a `KeyedCoProcessFunction`, or of what makes one operator of two
            keyed streams. Its event time goes as that of the first.
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
        batch_rows: int = 1024,
        broadcast: str = "",
        broadcast_states: Sequence[MapStateDescriptor] = (),
        second: SecondStream | None = None,
        restore: Snapshot | None = None,
        **options: Any,
    ) -> None:
        states: Any = broadcast_states
        if not isinstance(states, (list, tuple)):
            raise UserError(
                f"broadcast_states is a list of descriptors: broadcast_states={states!r:.100}; "
                f"give [descriptor]"
            )
        self._setting = _Setting(
            schema,
            key_by,
            output,
            event_time,
            max_delay,
            broadcast,
            tuple(states),
            second,
            options,
            max_parallelism,
            batch_rows,
        )
        if max_delay is not None and event_time is None:
            raise UserError(
                f"event time has a delay where it is declared: max_delay={max_delay}; give "
                f"event_time=... too, the column that holds it"
            )
        require_whole("batch_rows", batch_rows, 1, _MOST_ROWS)
        require_whole("now_ms", now_ms, 0, LAST_MS)
        self._now_ms = now_ms
        self._sent: dict[str, list[Any]] = {}
        self._closed = False
        self._started = self._start(function, parallelism, restore)
        self._go_on(self._started)
        if restore is not None:
            self._now_ms = max(now_ms, restore.now_ms)

    def __enter__(self) -> Self:
        self._running  # noqa: B018 - refuses one that is closed
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End it, and close a long-lived function; idempotent.

        Snapshots that were taken stay, and so does what was sent. All else is refused afterwards.
        """
        self._closed = True
        self._started.job.close()

    # -- rows and time ---------------------------------------------------------------------

    def process(
        self, *rows: Any, broadcast: Sequence[Any] = (), second: Sequence[Any] = ()
    ) -> list[Any]:
        """Run an epoch over rows, tuples or dicts; what the function yielded, as named tuples.

        Args:
            broadcast: rows of the broadcast stream, which every subtask sees before `rows`.
            second: rows of the second stream.

        Raises:
            UserError: a row does not fit the stream.
            Exception: what the function raised, with a note that names the key.
        """
        running = self._running
        if broadcast and not self._setting.broadcast:
            raise UserError(
                "there is no broadcast stream: make the harness with broadcast=DDL of its rows and "
                "broadcast_states=[...]"
            )
        if second and self._setting.second is None:
            raise UserError(
                "there is no second stream: make the harness with second=SecondStream(DDL, key_by)"
            )
        given = {_INPUT: rows, _SECOND: second, _BROADCAST: broadcast}
        running.job.epoch({uid: some for uid, some in given.items() if some})
        found: list[Any] = []
        for name, collector in running.collectors.items():
            sent = list(chain.from_iterable(map(running.readers[name].rows, collector.take())))
            self._sent[name] += sent
            if not name:
                found = sent
        return found

    def process_watermark(
        self, timestamp: int, *, stream: Literal["both", "first", "second"] = "both"
    ) -> list[Any]:
        """Let event time have come so far; what timers sent.

        Args:
            stream: the one of two that has come so far. The function goes by the slower one, and
                has no watermark before both have.

        Raises:
            UserError: no event time is declared, rows move the watermark, or it would go back.
        """
        runner = self._running.job.runner
        require_whole("timestamp", timestamp, -LAST_MS, LAST_MS)
        if self._setting.event_time is None or self._setting.max_delay is not None:
            raise UserError(
                "a watermark is given where event_time is declared and max_delay is not: "
                f"event_time={self._setting.event_time} max_delay={self._setting.max_delay}"
            )
        marks, moved = runner.watermarks, self._clocks_of(stream)
        newest = [marks.inputs[name].newest for name in moved if name in marks.inputs]
        before = [time - 1 for time in newest if time is not None]
        if stream == "both" or marks.drained:
            before.append(self.current_watermark())
        if before and timestamp < max(before):
            raise UserError(
                f"a watermark does not go back: given={timestamp} is={max(before)} stream={stream}"
            )
        reached = dict.fromkeys(moved, InputTime(SourceTime(timestamp + 1)))
        return self._process_at(replace(marks, inputs={**marks.inputs, **reached}))

    def set_processing_time(self, now_ms: int) -> list[Any]:
        """Let it be so late, in milliseconds; what timers sent.

        Raises:
            UserError: it would go back.
        """
        self._running  # noqa: B018 - refuses one that is closed
        require_whole("now_ms", now_ms, 0, LAST_MS)
        if now_ms < self._now_ms:
            raise UserError(f"processing time does not go back: given={now_ms} is={self._now_ms}")
        self._now_ms = now_ms
        return self.process()

    def end_input(self) -> list[Any]:
        """Let the input end: every event-time timer fires; what they sent."""
        return self._process_at(self._running.job.runner.watermarks.drain())

    def current_watermark(self) -> int:
        """The watermark of the next epoch; `NO_WATERMARK` before the first."""
        return self._running.job.runner.watermarks.of(self._running.uid)

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
        return self._running.state.keys()

    def state(self, name: str, key: Any, namespace: tuple[Any, ...] | None = None) -> Any:
        """What a key has in a state, as committed: a value, a list, a dict; None for nothing.

        Of a reducing state what its values were reduced to, of an aggregating one the accumulator.

        Args:
            namespace: for a state that has them, such as the (start, end) of a window.

        Raises:
            UserError: no state of this name was declared; it has namespaces and none is given; or
                the key or namespace is none of this stream.
        """
        return self._running.state.state(name, key, namespace)

    def broadcast_state(self, name: str) -> dict[Any, Any]:
        """The entries of a broadcast state, as committed.

        Raises:
            UserError: the harness has no such state; or not all subtasks have the same entries.
        """
        return self._running.state.broadcast_state(name)

    def timers(self, key: Any, domain: TimeDomain = TimeDomain.EVENT_TIME) -> list[int]:
        """The times for which a key has timers, in order.

        Raises:
            UserError: it is no key of this stream.
        """
        return self._running.state.timers(key, domain)

    def num_timers(self, domain: TimeDomain = TimeDomain.EVENT_TIME) -> int:
        """How many timers there are of all keys."""
        return self._running.state.num_timers(domain)

    # -- crashes, snapshots, other sizes and other versions --------------------------------

    def crash_and_replay(
        self, *rows: Any, broadcast: Sequence[Any] = (), second: Sequence[Any] = ()
    ) -> list[Any]:
        """Run an epoch, forget it as a crash would, and run it again; what it yielded.

        It is run several times: as it is, again, on another day, with other random numbers, with
        new instances of the function for each row. Then it is committed.

        Raises:
            NotDeterministic: it sent other rows, or changed state otherwise; the message says when,
                and which row or state of which key. Nothing of the epoch is there afterwards.
        """
        running = self._running
        planner = running.job.planner
        planner.rehearse = Replay(running.job, running.collectors)
        try:
            return self.process(*rows, broadcast=broadcast, second=second)
        finally:
            del planner.rehearse

    def snapshot(self) -> Snapshot:
        """A checkpoint, for `restore` here or for a new harness."""
        return self._running.job.snapshot()

    def restore(
        self,
        snapshot: Snapshot,
        *,
        function: KeyedProcessFunction | Applied | None = None,
        parallelism: int | None = None,
    ) -> None:
        """Go back to a snapshot, with another function or number of subtasks if they are given.

        What was sent stays, processing time too. What is refused changes nothing.

        Raises:
            UserError: the function cannot read what the snapshot has, or it is no function or
                number of subtasks.
            Exception: what the function raised when it was opened.
        """
        function = self._running.function if function is None else function
        require_snapshot(snapshot)
        self._replace(
            function, snapshot.parallelism if parallelism is None else parallelism, snapshot
        )

    def rescale(self, parallelism: int) -> None:
        """Go on with another number of subtasks.

        Raises:
            UserError: it is no number from 1 to `max_parallelism`; nothing has changed.
        """
        self._replace(self._running.function, parallelism, self.snapshot())

    def upgrade(self, function: KeyedProcessFunction | Applied) -> None:
        """Go on with another version of the function, whose states may have other types.

        Raises:
            UserError: it cannot read what is there, as in a job; the old version goes on.
            Exception: what it raised when it was opened.
        """
        self._replace(function, self._running.job.planner.parallelism, self.snapshot())

    def _replace(
        self, function: KeyedProcessFunction | Applied, parallelism: int, snapshot: Snapshot
    ) -> None:
        before = self._running
        started = self._start(function, parallelism, snapshot)
        before.job.close()
        self._go_on(started)

    # ----------------------------------------------------------------------------------------

    @property
    def _running(self) -> _Running:
        if self._closed:
            raise UserError(
                "the harness is closed: use it before its close() and within its with block, or "
                "make a new one, which goes on from a snapshot with restore=..."
            )
        return self._started

    def _clocks_of(self, stream: str) -> list[str]:
        clocks = self._running.job.runner.watermarks.clocks
        if stream == "both":
            return list(clocks)
        if (name := _INPUT_OF.get(stream)) is None or name not in clocks or len(clocks) == 1:
            raise UserError(
                f"a watermark of one of two streams is given where both have event time: "
                f"stream={stream!r:.20}; give 'first' or 'second', with "
                f"second=SecondStream(DDL, key_by, event_time), or leave it out"
            )
        return [name]

    def _process_at(self, watermarks: Watermarks) -> list[Any]:
        """Run an epoch of no rows at another time, which is taken back if it fails."""
        runner = self._running.job.runner
        before, runner.watermarks = runner.watermarks, watermarks
        try:
            return self.process()
        except BaseException:
            runner.watermarks = before
            raise

    def _go_on(self, started: _Running) -> None:
        self._started = started
        for name in started.collectors:
            self._sent.setdefault(name, [])

    def _start(
        self, function: KeyedProcessFunction | Applied, parallelism: int, restore: Snapshot | None
    ) -> _Running:
        """A job of its own; it changes nothing here."""
        given = self._setting
        env = TestEnvironment()
        first = self._keyed(env, _INPUT, given.schema, given.key_by, given.event_time)
        made = self._applied(env, function, first)
        if len(env.graph.operators) != 1:
            raise UserError(
                f"a harness has one operator: uids={[o.uid for o in env.graph.operators]}; "
                f"test others in harnesses of their own, or the job with run_job"
            )
        (operator,) = env.graph.operators
        collectors, readers = {"": Collector()}, {"": TupleReader(made.schema.names)}
        _attach(made, "sent.main", collectors[""])
        for number, side in enumerate(operator.side_outputs):
            collectors[side.name] = Collector()
            readers[side.name] = TupleReader(side.schema.names)
            tag = OutputTag(side.name)
            _attach(made.get_side_output(tag), f"sent.{number}", collectors[side.name])
        clocks = None
        if given.event_time is not None and given.max_delay is None:
            timed = [_INPUT]
            if given.second is not None and given.second.event_time is not None:
                timed.append(_SECOND)
            # Counted by value, so that no row of a key tells how far time has come.
            clocks = JobClocks(
                {name: InputClock(per=name) for name in timed},
                {operator.uid: ("",) * len(operator.feeds)},
                {operator.uid: frozenset(timed)},
            )
        job = InProcessJob(
            env.graph,
            clock=lambda: self._now_ms,
            parallelism=parallelism,
            max_parallelism=given.max_parallelism,
            clocks=clocks,
            restore=restore,
        )
        job.planner.batch_rows = given.batch_rows
        try:
            if restore is not None:
                # What it cannot read is refused here, and not by the first epoch.
                job.declared()
        except BaseException:
            job.close()
            raise
        state = CommittedState(job, operator)
        return _Running(function, operator.uid, job, state, collectors, readers)

    def _keyed(
        self,
        env: TestEnvironment,
        uid: str,
        schema: str,
        key_by: Any,
        event_time: str | None,
    ) -> KeyedStream:
        keys = (key_by,) if isinstance(key_by, str) else key_by
        if not isinstance(keys, (tuple, list)):
            raise UserError(f"key_by is a column, or several: key_by={key_by!r:.100}; name them")
        stream = env.read_stream(uid, "rows", schema=schema)
        if event_time is not None:
            stream = stream.with_event_time(event_time, self._setting.max_delay or "0s")
        return stream.key_by(*keys)

    def _applied(
        self, env: TestEnvironment, function: KeyedProcessFunction | Applied, keyed: KeyedStream
    ) -> DataStream:
        given, streams = self._setting, [keyed]
        if (other := given.second) is not None:
            if not isinstance(other, SecondStream):
                raise UserError(
                    f"the second stream is a SecondStream(DDL, key_by, event_time): "
                    f"second={other!r:.100}; give one"
                )
            streams.append(self._keyed(env, _SECOND, other.schema, other.key_by, other.event_time))
        if isinstance(function, KeyedProcessFunction):
            process: Callable[..., DataStream] = keyed.process
            if len(streams) > 1:
                process = keyed.connect(streams[1]).process
            if given.broadcast or given.broadcast_states:
                rows = env.read_stream(_BROADCAST, "rows", schema=given.broadcast)
                process = keyed.connect(rows, *given.broadcast_states).process
            known = signature(process).parameters.keys()
            if strange := sorted(given.options.keys() - known):
                raise UserError(
                    f"a harness has no such argument, and process no such option: "
                    f"options={strange} has={sorted(known - {'function', 'output', 'uid'})}"
                )
            return process(function, uid=_UID, output=given.output, **given.options)
        applied = callable(function) and not isinstance(function, type)
        if applied and (given.output or given.options or given.broadcast):
            raise UserError(
                f"output, broadcast and options belong to the operator that this function makes: "
                f"output={given.output!r} broadcast={given.broadcast!r} "
                f"options={sorted(given.options)}; give them there"
            )
        if applied:
            _require_streams(function, len(streams))
        with calls_explained():
            made = function(*streams) if applied else None
        if not isinstance(made, DataStream):
            raise UserError(
                f"a harness takes an instance of a KeyedProcessFunction, or a function that makes "
                f"one operator of a keyed stream, or of two: got={function!r:.100}"
            )
        return made


def _require_streams(function: Applied, given: int) -> None:
    """Raise UserError for a function of one stream where there are two, and the other way round."""
    if why := misfit_of(function, range(given)):
        fix = "give second=SecondStream(...) with" if given == 1 else "leave second out with"
        raise UserError(
            f"a function takes other streams than the harness has: streams={given}: {why}; {fix} "
            f"this function"
        )


def _attach(stream: DataStream, uid: str, collector: Collector) -> None:
    sink: Any = collector
    stream.sink_to(sink, uid=uid)
