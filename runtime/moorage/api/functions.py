"""What a user writes: functions over keyed streams, and the contexts that they are handed.

The names are Flink's (PyFlink users will know them); rows are named tuples as Spark users know
them. Called by the subtask on executors.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from moorage_state.descriptors import (
    AggregatingStateDescriptor,
    FoldingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from moorage_state.errors import UserError
from moorage_state.keyed import (
    AggregatingState,
    FoldingState,
    KeyedStateStore,
    KeyTimers,
    ListState,
    MapState,
    ReducingState,
    TimeDomain,
    ValueState,
)
from moorage_state.keyed.namespaces import NamespacedState
from moorage_state.keyed.timers import NOTHING_HELD, timer_time

MAX_WATERMARK = (1 << 63) - 1
"""The watermark after the last record of a bounded job: every event-time timer is due."""

NO_WATERMARK = -(1 << 63)
"""The watermark before any record with an event time was seen."""


_Method = TypeVar("_Method", bound=Callable[..., Any])


def to_be_defined(method: _Method) -> _Method:
    """Marks what the author of a class has to define: a job with one that does not is refused.

    Unlike `abstractmethod` it makes no class abstract, to Python or to type checkers: a class of
    the author's may leave to those below it what only they know.
    """
    method.__dict__["to_be_defined"] = True
    return method


@dataclass(frozen=True, slots=True)
class OutputTag:
    """Names a side output of an operator.

    Make one for the job and use it wherever the side output is declared, sent to and read; within
    an operator it is the name that tells tags apart.

    Attributes:
        name: any text that is not empty.
        ddl: the columns of its rows; None for those of the stream that the operator processes.

    Raises:
        UserError: name or columns are not text, or empty.
    """

    name: str
    ddl: str | None = None

    def __post_init__(self) -> None:
        given: list[Any] = [self.name, "any" if self.ddl is None else self.ddl]
        if not all(isinstance(text, str) and text.strip() for text in given):
            raise UserError(
                f"an OutputTag has a name, and columns as DDL such as 'user string, n long': "
                f"name={self.name!r} ddl={self.ddl!r}"
            )


def undeclared(place: str, name: str, declared: Iterable[str]) -> UserError:
    """What is said of a side output that an operator does not declare."""
    return UserError(
        f"the operator does not declare this side output: {place} side_output={name} "
        f"declared={sorted(declared)}; give its tag to process(..., side_outputs=[...])"
    )


class TimerService:
    """Timers of the current key, and the two times they follow.

    Times are integers: milliseconds since 1970-01-01 UTC.
    """

    def __init__(self, timers: KeyTimers | None, watermark: int, now_ms: int) -> None:
        self._timers = timers
        self._watermark = watermark
        self._now_ms = now_ms

    def current_watermark(self) -> int:
        """The event time up to which the stream is taken to be complete.

        In `on_timer` of an event-time timer it is at or past the timer. It moves between epochs;
        within one only for a key of an operator with timers that goes by a single input, as that
        key's rows do. `NO_WATERMARK` before the first event time, `MAX_WATERMARK` when a bounded
        job has seen its last record.
        """
        return self._watermark

    def current_processing_time(self) -> int:
        """The driver's clock when it began the epoch.

        One number for all subtasks and attempts of an epoch, so that functions that use it stay
        deterministic. It never goes back, not after a restore either.
        """
        return self._now_ms

    def register_event_time_timer(self, timestamp: int) -> None:
        """Have `on_timer` called for the current key at `timestamp`; once per key and time.

        Raises:
            RuntimeError: when the function has no `on_timer`.
            TypeError: when `timestamp` is not an integer.
            ValueError: when it does not fit 64 bits.
        """
        self._require().register(timer_time(timestamp))

    def _register_first(self, timestamp: int) -> None:
        """Have `on_timer` called by event time at `timestamp`, where nothing calls it before."""
        timers = self._require()
        if not timers.has_due(timestamp, NOTHING_HELD):
            timers.register(timestamp)

    def delete_event_time_timer(self, timestamp: int) -> None:
        """Delete the current key's timer at `timestamp`, if it is set."""
        self._require().delete(timer_time(timestamp))

    def register_processing_time_timer(self, timestamp: int) -> None:
        """Have `on_timer` called for the current key once processing time is at `timestamp`.

        Once per key and time; also when no row comes. A time that has passed fires when the key's
        rows are done; if `on_timer` sets it, in the next epoch, unless it is later than the
        processing-time timer that fires.
        """
        self._require().register(timer_time(timestamp), TimeDomain.PROCESSING_TIME)

    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Delete the current key's processing-time timer at `timestamp`, if it is set."""
        self._require().delete(timer_time(timestamp), TimeDomain.PROCESSING_TIME)

    def _require(self) -> KeyTimers:
        if self._timers is None:
            raise RuntimeError(
                "this function sets a timer but does not define on_timer(timestamp, ctx)"
            )
        return self._timers


def nowhere(tag: OutputTag, row: Any) -> None:  # noqa: ARG001
    """Where side outputs of a context go that no operator has."""
    raise RuntimeError(f"no operator runs that could send rows: side_output={tag.name}")


class RuntimeContext:
    """Handed to `open`: gives the handles of the operator's keyed state."""

    def __init__(self, store: KeyedStateStore, uid: str, subtask: int, parallelism: int) -> None:
        self._store = store
        self.uid = uid
        self.subtask = subtask
        self.parallelism = parallelism

    def get_state(self, descriptor: ValueStateDescriptor) -> ValueState:
        """One value per key."""
        return self._store.value_state(descriptor)

    def get_list_state(self, descriptor: ListStateDescriptor) -> ListState:
        """A list per key; adding to it reads nothing."""
        return self._store.list_state(descriptor)

    def get_map_state(self, descriptor: MapStateDescriptor) -> MapState:
        """A map per key."""
        return self._store.map_state(descriptor)

    def get_reducing_state(self, descriptor: ReducingStateDescriptor) -> ReducingState:
        """One value per key, to which added values are reduced."""
        return self._store.reducing_state(descriptor)

    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor) -> AggregatingState:
        """An accumulator per key, into which values are added."""
        return self._store.aggregating_state(descriptor)

    def get_folding_state(self, descriptor: FoldingStateDescriptor) -> FoldingState:
        """Deprecated: use `get_aggregating_state`."""
        return self._store.folding_state(descriptor)

    def get_namespaced_state(
        self, descriptor: StateDescriptor, types: Sequence[str]
    ) -> NamespacedState:
        """A state that a key has once for each namespace: once for each window, say.

        Args:
            descriptor: of any kind.
            types: the DDL types of a namespace's columns; types that keys may have.
        """
        return self._store.namespaced_state(descriptor, types)


class WorkerContext:
    """Handed to `open` of a long-lived function, which opens once for all epochs of its worker.

    There is no state: that is asked for in `open_epoch`.
    """

    def __init__(self, uid: str, parallelism: int) -> None:
        self.uid = uid
        self.parallelism = parallelism

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise RuntimeError(
            f"a long-lived function is opened once in a worker, for all its subtasks and epochs; "
            f"ask for state, and for which subtask it is, in open_epoch(ctx): operator={self.uid} "
            f"asked={name}"
        )


class ProcessContext:
    """Handed to `process` and `on_timer`: whose turn it is, and when.

    Attributes:
        key: the current key: the column's value, or a tuple where several columns form the key.
    """

    def __init__(self, timers: TimerService) -> None:
        self._timers = timers
        self.key: Any = None
        self._timestamp: int | None = None
        self._domain: TimeDomain | None = None
        self._emit: Callable[[OutputTag, Any], None] = nowhere

    def get_current_key(self) -> Any:
        """The same as `key`, under the name that PyFlink gives it."""
        return self.key

    def timestamp(self) -> int | None:
        """Event time of the row, or of the timer that fires; None where none is declared."""
        return self._timestamp

    def time_domain(self) -> TimeDomain | None:
        """What kind of timer fires; None in `process`."""
        return self._domain

    def timer_service(self) -> TimerService:
        """Set and delete timers, read the watermark and processing time."""
        return self._timers

    def output(self, tag: OutputTag, row: Any) -> None:
        """Send a row to a side output; the same as yielding ``tag, row``.

        Raises:
            UserError: the operator does not declare the side output, or it is no row of it.
        """
        self._emit(tag, row)


class RichFunction:
    """What all functions have: an instance is opened, works for some time, and is closed.

    Attributes:
        long_lived: say True in the class, and an instance lives as long as its worker: `open` is
            called once, without state, for what is dear to make (a model, a client), and
            `open_epoch` at the start of each epoch of any subtask that the worker runs. What it
            keeps must change no output: a worker may end at any time, and a row may come to any.
    """

    long_lived: bool = False

    def open(self, ctx: RuntimeContext) -> None:
        """Get the state handles; called once before the first row.

        Of a long-lived function called once in its worker, with a `WorkerContext`.
        """

    def open_epoch(self, ctx: RuntimeContext) -> None:
        """Called at the start of each epoch, after `open`: a long-lived one gets its state here."""

    def close(self) -> None:
        """Release what `open` took; called once after the last row, also after a failure.

        Of a long-lived function after a failure, and where another run takes its place; a worker
        that ends calls nothing.
        """


class OfFunction(RichFunction):
    """An operator that runs a function of a job's author: it lives as long, opens and closes it.

    Its own state it gets in `open_epoch`, which is called of both kinds.
    """

    def __init__(self, function: RichFunction) -> None:
        self._function = function
        self.long_lived = function.long_lived

    def open(self, ctx: RuntimeContext) -> None:
        """See `RichFunction`."""
        self._function.open(ctx)

    def open_epoch(self, ctx: RuntimeContext) -> None:
        """See `RichFunction`."""
        self._function.open_epoch(ctx)

    def close(self) -> None:
        """See `RichFunction`."""
        self._function.close()


def innermost(function: Any) -> Any:
    """What the operators that run a function are made of, in the end: itself where it is none."""
    # By type: an object of a job may answer with code of its own.
    while issubclass(type(function), OfFunction):
        function = function._function  # noqa: SLF001 - of this module
    return function


class KeyedProcessFunction(RichFunction):
    """A function over the rows of one key at a time, with state and timers.

    Rows of a key come in this order: the order of their source partition; across source
    partitions by event time where one is declared. `process` and `on_timer` return None or an
    iterable of output rows (or are generators): tuples in the order of the declared output
    columns, or dicts; and pairs ``tag, row`` for side outputs. They must be deterministic: Spark
    may run them again on the same rows, and two runs that differ fail the epoch.

    An instance lives for one subtask and one epoch; what has to last goes into state. `open` is
    called at the start of each epoch in each subtask.

    Attributes:
        late_rows_dropped: how many rows the instance has dropped because they came too late: a
            function that drops some adds them, and a metric tells.
    """

    late_rows_dropped: int = 0

    has_timers: ClassVar[bool] = False
    """Whether it handles timers; only then may it set some."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Look what the class handles, once."""
        super().__init_subclass__(**options)
        cls.has_timers = cls.on_timer is not KeyedProcessFunction.on_timer

    @to_be_defined
    def process(self, row: Any, ctx: ProcessContext) -> Iterable[Any] | None:  # noqa: ARG002
        """Handle one row, a named tuple of the stream's columns."""
        raise TypeError(f"{type(self).__name__} does not define process(row, ctx)")

    def on_timer(self, timestamp: int, ctx: ProcessContext) -> Iterable[Any] | None:  # noqa: ARG002
        """Handle a timer of the current key that has become due.

        `ctx.time_domain()` says of which kind. An event-time timer set here that is due already
        fires next. One that always sets the next never ends at `MAX_WATERMARK`: ask
        `current_watermark` first. With the backend batch, what is set at the end of a key is
        ignored.
        """
        raise TypeError(f"{type(self).__name__} does not define on_timer(timestamp, ctx)")


class KeyedCoProcessFunction(KeyedProcessFunction):
    """A function over the rows of two keyed streams, which share state and timers of a key.

    A key's rows of both streams come in one order: by event time where it is declared, then those
    of the first stream before those of the second, then as they lie in their sources. Of a stream
    that declares none while the other does they come first in their epoch. Nothing else is promised
    of one stream against the other: which of them is ahead is for state to bridge.
    """

    @to_be_defined
    def process_element1(self, row: Any, ctx: ProcessContext) -> Iterable[Any] | None:  # noqa: ARG002
        """Handle one row of the first stream, as `KeyedProcessFunction.process` does."""
        raise TypeError(f"{type(self).__name__} does not define process_element1(row, ctx)")

    @to_be_defined
    def process_element2(self, row: Any, ctx: ProcessContext) -> Iterable[Any] | None:  # noqa: ARG002
        """Handle one row of the second stream."""
        raise TypeError(f"{type(self).__name__} does not define process_element2(row, ctx)")

    def process(self, row: Any, ctx: ProcessContext) -> Iterable[Any] | None:
        """What the engine calls: with a row, and which stream it is of."""
        side, mine = row
        return self.process_element2(mine, ctx) if side else self.process_element1(mine, ctx)
