"""Windows: how rows are put into them, when they give a result, and what is done with a window.

What a user writes between `key_by` and a result. The words are Flink's, and so is what they mean;
`docs/windows.md` says where it differs. Called by job files; `window_operator` carries it out.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Flag
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

from moorage.api.declarations import check_flag, parse_duration, require_forms
from moorage.api.functions import OutputTag, RichFunction, to_be_defined
from moorage_state.errors import Bug, UserError
from moorage_state.keyed import TimeDomain

MIN_TIME, MAX_TIME = -(1 << 63), (1 << 63) - 1


LAST_TIME = 1 << 52
"""Beyond this time, before or after 1970, there are no windows: their ends would not fit."""


def beyond(time_ms: int) -> UserError:
    """What is said of a row whose time is that far away."""
    return UserError(
        f"a row's event time is too far away for a window: milliseconds={time_ms}; mend its unit, "
        f"or filter such rows out, before key_by"
    )


class TimeWindow(NamedTuple):
    """The times from `start` to before `end`, in milliseconds since 1970 UTC."""

    start: int
    end: int

    @property
    def max_timestamp(self) -> int:
        """The last millisecond that belongs to it."""
        return self.end - 1 if self.end < MAX_TIME else MAX_TIME


GLOBAL_WINDOW = TimeWindow(MIN_TIME, MAX_TIME)
"""The one window of `Global` and `Count`."""

Time = Literal["event", "processing"]


class WindowAssigner(ABC):
    """Which windows a row belongs to.

    Attributes:
        domain: what its windows end by; None for those that never end by time.
        merges: whether windows that meet become one.
    """

    domain: TimeDomain | None
    merges: ClassVar[bool] = False

    @abstractmethod
    def assign(self, at: int) -> list[TimeWindow]:
        """The windows of a row of this time, earliest first."""

    @abstractmethod
    def ending_at(self, end: int) -> TimeWindow | None:
        """The window that ends then, if one may; of an assigner that does not merge."""

    @property
    @abstractmethod
    def default_trigger(self) -> "Trigger":
        """When its windows give results if nothing else is said."""


def _domain(time: Any) -> TimeDomain:
    if time not in ("event", "processing"):  # a list has no hash
        raise UserError(f"windows go by event time or processing time: time={time!r}")
    return TimeDomain.EVENT_TIME if time == "event" else TimeDomain.PROCESSING_TIME


def _span(what: str, text: str) -> int:
    if (span := parse_duration(text)) == 0:
        raise UserError(f"a window needs some time, such as '1m': {what}={text!r}")
    return span


@dataclass(frozen=True)
class Sliding(WindowAssigner):
    """Windows of one size that begin each `slide`; a row is in `size / slide` of them.

    Args:
        offset: by how much windows begin after multiples of `slide` since 1970 UTC.
        time: "event" or "processing".

    Raises:
        UserError: for no duration, a size or slide of nothing, or an offset as long as the slide.
    """

    size: str
    slide: str
    offset: str = "0s"
    time: Time = "event"

    def __post_init__(self) -> None:
        object.__setattr__(self, "domain", _domain(self.time))
        object.__setattr__(self, "size_ms", _span("size", self.size))
        object.__setattr__(self, "slide_ms", _span("slide", self.slide))
        object.__setattr__(self, "offset_ms", parse_duration(self.offset))
        if self.offset_ms >= self.slide_ms:
            raise UserError(
                f"windows begin less than one slide after multiples of it: offset={self.offset!r} "
                f"slide={self.slide!r}"
            )

    def __repr__(self) -> str:
        """As one writes it: windows of their own slide are `Tumbling`."""
        kind, spans = "Sliding", f"size={self.size!r}, slide={self.slide!r}"
        if self.size == self.slide:
            kind, spans = "Tumbling", f"size={self.size!r}"
        return f"{kind}({spans}, offset={self.offset!r}, time={self.time!r})"

    domain: TimeDomain = field(init=False, repr=False, compare=False)
    size_ms: int = field(init=False, repr=False, compare=False)
    slide_ms: int = field(init=False, repr=False, compare=False)
    offset_ms: int = field(init=False, repr=False, compare=False)

    def assign(self, at: int) -> list[TimeWindow]:
        """See `WindowAssigner`."""
        last = at - (at - self.offset_ms) % self.slide_ms
        first = last - (self.size_ms - 1 - (at - last)) // self.slide_ms * self.slide_ms
        starts = range(first, last + 1, self.slide_ms)
        return [TimeWindow(start, start + self.size_ms) for start in starts]

    def ending_at(self, end: int) -> TimeWindow | None:
        """See `WindowAssigner`."""
        start = end - self.size_ms
        fits = (start - self.offset_ms) % self.slide_ms == 0
        return TimeWindow(start, end) if fits else None

    @property
    def default_trigger(self) -> "Trigger":
        """See `WindowAssigner`."""
        return AtEnd()


def Tumbling(size: str, offset: str = "0s", time: Time = "event") -> Sliding:  # noqa: N802 - it stands beside classes
    """Windows of one size, one after the other: `Sliding` by their own size."""
    return Sliding(size, size, offset, time)


@dataclass(frozen=True)
class Session(WindowAssigner):
    """Windows that end when for `gap` no row came; rows at most `gap` apart share one.

    Raises:
        UserError: for no duration, or none at all.
    """

    gap: str
    time: Time = "event"
    merges: ClassVar[bool] = True
    domain: TimeDomain = field(init=False, repr=False, compare=False)
    gap_ms: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "domain", _domain(self.time))
        object.__setattr__(self, "gap_ms", _span("gap", self.gap))

    def assign(self, at: int) -> list[TimeWindow]:
        """See `WindowAssigner`; windows that meet are merged."""
        return [TimeWindow(at, at + self.gap_ms)]

    def ending_at(self, end: int) -> TimeWindow | None:
        """Unknown: a session may have begun at any time."""
        raise Bug(f"windows that merge are found in their set: end={end}")

    @property
    def default_trigger(self) -> "Trigger":
        """See `WindowAssigner`."""
        return AtEnd()


@dataclass(frozen=True)
class Global(WindowAssigner):
    """One window for all rows of a key, that never ends: it needs a trigger to give results."""

    domain: ClassVar[None] = None  # type: ignore[misc]  # of every instance

    def assign(self, at: int) -> list[TimeWindow]:  # noqa: ARG002
        """See `WindowAssigner`."""
        return [GLOBAL_WINDOW]

    def ending_at(self, end: int) -> TimeWindow | None:  # noqa: ARG002
        """None: it never ends."""
        return None

    @property
    def default_trigger(self) -> "Trigger":
        """See `WindowAssigner`."""
        return Never()


@dataclass(frozen=True)
class Count(Global):
    """Windows of `size` rows of a key each, whatever their times.

    Raises:
        UserError: `size` is no positive integer.
    """

    size: int

    def __post_init__(self) -> None:
        _require_count("size", self.size)

    @property
    def default_trigger(self) -> "Trigger":
        """See `WindowAssigner`."""
        return EachCount(self.size, purge=True)


def _require_count(what: str, count: Any) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise UserError(f"a count of rows is a positive integer: {what}={count!r}")


# -- triggers ---------------------------------------------------------------------------------


class TriggerResult(Flag):
    """What a trigger decides: to give a result, to forget the window's rows, both or neither."""

    CONTINUE = 0
    FIRE = 1
    PURGE = 2
    FIRE_AND_PURGE = 3


class TriggerContext(Protocol):
    """What a trigger is told, and may ask for, of the window that it decides about.

    Attributes:
        watermark: as in `TimerService`.
        now_ms: processing time.
        domain: what the window ends by; None where it does not.
    """

    watermark: int
    now_ms: int
    domain: TimeDomain | None

    def register(self, time_ms: int, domain: TimeDomain) -> None:
        """Have `on_timer` called."""

    def counted(self, most: int) -> bool:
        """Count a row; whether it is the last of `most`, and counting begins anew."""


class Trigger(ABC):
    """When a window gives a result. Holds configuration only.

    Attributes:
        counts: whether it asks for `TriggerContext.counted`.
        wakes: whether it sets timers of its own, beside the end of the window.
    """

    counts: ClassVar[bool] = False
    wakes: ClassVar[bool] = False

    @abstractmethod
    def on_element(self, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        """A row was added to the window."""

    def on_timer(
        self,
        time_ms: int,  # noqa: ARG002
        domain: TimeDomain,  # noqa: ARG002
        window: TimeWindow,  # noqa: ARG002
        ctx: TriggerContext,  # noqa: ARG002
    ) -> TriggerResult:
        """A timer of the window's key is due, maybe of another window."""
        return TriggerResult.CONTINUE

    def on_merge(self, window: TimeWindow, ctx: TriggerContext) -> None:  # noqa: B027 - one that sets no timers has nothing to do
        """Windows, whose timers were deleted, became this one."""


@dataclass(frozen=True)
class AtEnd(Trigger):
    """Fires at the window's end, and for each late row that still counts.

    Flink's `EventTimeTrigger` and `ProcessingTimeTrigger`, whichever time the windows go by.
    """

    def on_element(self, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        """See `Trigger`."""
        if ctx.domain is TimeDomain.EVENT_TIME and window.max_timestamp <= ctx.watermark:
            return TriggerResult.FIRE
        self.on_merge(window, ctx)
        return TriggerResult.CONTINUE

    def on_timer(
        self,
        time_ms: int,
        domain: TimeDomain,
        window: TimeWindow,
        ctx: TriggerContext,
    ) -> TriggerResult:
        """See `Trigger`."""
        ended = domain is ctx.domain and time_ms == window.max_timestamp
        return TriggerResult.FIRE if ended else TriggerResult.CONTINUE

    def on_merge(self, window: TimeWindow, ctx: TriggerContext) -> None:
        """See `Trigger`."""
        if ctx.domain is not None and (
            ctx.domain is TimeDomain.PROCESSING_TIME or window.max_timestamp > ctx.watermark
        ):
            ctx.register(window.max_timestamp, ctx.domain)


@dataclass(frozen=True)
class EachCount(Trigger):
    """Fires with each `count`-th row of a window, and not at its end: Flink's `CountTrigger`.

    Args:
        purge: forget the rows that were counted: its `PurgingTrigger`.

    Raises:
        UserError: `count` is no positive integer, or `purge` no flag.
    """

    count: int
    purge: bool = False
    counts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _require_count("count", self.count)
        check_flag("EachCount", "purge", self.purge)

    def on_element(self, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:  # noqa: ARG002
        """See `Trigger`."""
        if not ctx.counted(self.count):
            return TriggerResult.CONTINUE
        return TriggerResult.FIRE_AND_PURGE if self.purge else TriggerResult.FIRE


@dataclass(frozen=True)
class Early(AtEnd):
    """Fires as `AtEnd`, and before that each `every` of processing time, with what there is.

    What Flink calls an early firing; between ends it is its `ContinuousProcessingTimeTrigger`.

    Raises:
        UserError: for no duration, or none at all.
    """

    every: str
    wakes: ClassVar[bool] = True
    every_ms: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "every_ms", _span("every", self.every))

    def on_timer(
        self,
        time_ms: int,
        domain: TimeDomain,
        window: TimeWindow,
        ctx: TriggerContext,
    ) -> TriggerResult:
        """See `Trigger`."""
        if super().on_timer(time_ms, domain, window, ctx):
            return TriggerResult.FIRE
        ticked = domain is TimeDomain.PROCESSING_TIME and time_ms % self.every_ms == 0
        if not ticked or not self._is_open(window, ctx):
            return TriggerResult.CONTINUE
        self._wake(ctx)
        return TriggerResult.FIRE

    def on_merge(self, window: TimeWindow, ctx: TriggerContext) -> None:
        """See `Trigger`."""
        super().on_merge(window, ctx)
        self._wake(ctx)

    def _is_open(self, window: TimeWindow, ctx: TriggerContext) -> bool:
        by_event = ctx.domain is TimeDomain.EVENT_TIME
        return window.max_timestamp > (ctx.watermark if by_event else ctx.now_ms)

    def _wake(self, ctx: TriggerContext) -> None:
        # The next multiple from now on, not from the last one: after a pause it fires once.
        next_ms = ctx.now_ms - ctx.now_ms % self.every_ms + self.every_ms
        ctx.register(next_ms, TimeDomain.PROCESSING_TIME)


@dataclass(frozen=True)
class Never(Trigger):
    """Never fires: Flink's `NeverTrigger`, what `Global` has if nothing else is said."""

    def on_element(self, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:  # noqa: ARG002
        """See `Trigger`."""
        return TriggerResult.CONTINUE


# -- what is done with a window ---------------------------------------------------------------


class WindowContext:
    """Handed to `ProcessWindowFunction.process`: which window fires, and when.

    Attributes:
        key: the current key.
        window: its `start` and `end`, integers of milliseconds since 1970 UTC; the whole of time
            for `Global` and `Count`.
    """

    def __init__(
        self,
        key: Any,
        window: TimeWindow,
        watermark: int,
        now_ms: int,
        emit: Callable[[OutputTag, Any], None],
    ) -> None:
        self.key = key
        self.window = window
        self._watermark = watermark
        self._now_ms = now_ms
        self._emit = emit

    def current_watermark(self) -> int:
        """See `TimerService.current_watermark`."""
        return self._watermark

    def current_processing_time(self) -> int:
        """See `TimerService.current_processing_time`."""
        return self._now_ms

    def output(self, tag: OutputTag, row: Any) -> None:
        """Send a row to a side output; see `ProcessContext.output`."""
        self._emit(tag, row)


class ProcessWindowFunction(RichFunction):
    """A function over all rows of a window that fires; they are kept until the window is gone.

    Where an aggregate will do, take `aggregate`: it keeps one small value for a window. State that
    it gets is that of the key, which all its windows share.
    """

    @to_be_defined
    def process(self, key: Any, ctx: WindowContext, rows: list[Any]) -> Iterable[Any] | None:  # noqa: ARG002
        """Give output rows for a window, of its rows in the order in which they came."""
        raise TypeError(f"{type(self).__name__} does not define process(key, ctx, rows)")


@dataclass(frozen=True)
class Windowing:
    """Everything that was said of windows before it was said what is done with them."""

    assigner: WindowAssigner
    trigger: Trigger
    lateness_ms: int = 0
    late: OutputTag | None = None

    @property
    def by_end(self) -> Sliding | None:
        """See `ByEnd`."""
        return self.assigner if isinstance(self.assigner, Sliding) else None


class ByEnd:
    """A function that finds windows by when they end, and so must know of those it had before.

    Attributes:
        by_end: what it puts rows into; None where it finds windows otherwise.
        earlier: what versions before it put rows into, which may be open still.
    """

    by_end: Sliding | None = None
    earlier: tuple[Sliding, ...] = ()


def stored_windows(function: object) -> list[list[str]]:
    """What a checkpoint keeps of the windows of a function, the current ones first."""
    if not isinstance(function, ByEnd) or function.by_end is None:
        return []
    known = (function.by_end, *function.earlier)
    return [[one.size, one.slide, one.offset, one.time] for one in known]


def go_on_with_windows(function: object, stored: Sequence[Sequence[Any]]) -> None:
    """Have a function end the windows of versions before it, which `stored_windows` gave."""
    if isinstance(function, ByEnd) and (now := function.by_end) is not None:
        before = [Sliding(*one) for one in stored]
        # Windows of another kind of time have timers of that kind, which nothing looks at.
        wanted = (one for one in before if one != now and one.domain is now.domain)
        function.earlier = tuple(dict.fromkeys(wanted))


def windowing(
    assigner: WindowAssigner,
    trigger: Trigger | None,
    allowed_lateness: str,
    late: str | OutputTag,
) -> Windowing:
    """What `KeyedStream.window` was given, checked."""
    given: list[Any] = [assigner, trigger, late]
    if not isinstance(given[0], WindowAssigner):
        raise UserError(
            f"window takes Tumbling, Sliding, Session, Count or Global: got={assigner!r:.100}"
        )
    if given[1] is not None and not isinstance(given[1], Trigger):
        raise UserError(f"a trigger is AtEnd, EachCount, Early or Never: got={trigger!r:.100}")
    require_forms("", trigger)
    if not isinstance(late, OutputTag) and late != "drop":
        raise UserError(f"late is 'drop' or the OutputTag of a side output: late={late!r}")
    lateness = parse_duration(allowed_lateness)
    by_event = assigner.domain is TimeDomain.EVENT_TIME
    if not by_event and (lateness or late != "drop"):
        raise UserError(
            f"rows are late for windows of event time alone; leave out allowed_lateness and late: "
            f"window={assigner!r} allowed_lateness={allowed_lateness!r} late={late!r}"
        )
    return Windowing(
        assigner,
        trigger or assigner.default_trigger,
        lateness,
        late if isinstance(late, OutputTag) else None,
    )
