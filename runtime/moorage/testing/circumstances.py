"""What may be otherwise when an epoch runs again: the day, random numbers, how long instances live.

Each is changed by itself, so that whoever compares knows what made the difference. Called by
`replay`; knows nothing of rows and state.
"""

import gc
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from ctypes import py_object, pythonapi
from datetime import datetime, timedelta, tzinfo
from typing import Any, NamedTuple

import numpy as np
from pyspark import cloudpickle

from moorage.api.checkpointed import CheckpointedFunction
from moorage.api.functions import KeyedProcessFunction, RuntimeContext
from moorage.testing.tracebacks import may_be_the_jobs

_LATER = timedelta(days=400, hours=3, minutes=1, seconds=1)
"""Year, month, day, weekday, hour, minute and second are others, also where 400 days become 401."""

_CALLED_FOR_ROWS = (
    "process",
    "on_timer",
    "process_broadcast_element",
    "process_batch",
    "on_timers",
)


class Dice(NamedTuple):
    """Seeds of the random numbers of Python's module and of NumPy's."""

    python: int
    numpy: int


LOW, HIGH = Dice(152_559, 59_899), Dice(42_926, 21_159)
"""Their first random number is next to 0 or next to 1: also a rare event is met in one of them."""


@contextmanager
def random_numbers(seeds: Dice | None) -> Iterator[None]:
    """Within, random numbers begin as they do now, or with these seeds; afterwards as they do now.

    Those of `os.urandom`, which uuid4, `secrets` and generators without a seed ask, are always
    others.
    """
    python, of_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - what functions may call
    try:
        if seeds is not None:
            random.seed(seeds.python)
            np.random.seed(seeds.numpy)  # noqa: NPY002 - as above
        yield
    finally:
        random.setstate(python)
        np.random.set_state(of_numpy)  # noqa: NPY002 - as above


@contextmanager
def another_day() -> Iterator[None]:
    """Within, the clocks of `time` and `datetime` are a year, a month, a day and hours ahead.

    Wall clocks only: the others tell another time in each attempt by themselves.
    """
    shifted = {id(real): _shifted(real) for real in _clocks()}
    names = [
        (vars(module), name, value)
        for module in _modules()
        for name, value in list(vars(module).items())
        # By what it is, not by its name: `from time import time as now`.
        if id(value) in shifted
    ]
    try:
        for namespace, name, real in names:
            namespace[name] = shifted[id(real)]
        with _datetime_shifted():
            yield
    finally:
        for namespace, name, real in names:
            namespace[name] = real


def _clocks() -> list[Callable[..., Any]]:
    return [
        time.time,
        time.time_ns,
        time.localtime,
        time.gmtime,
        time.ctime,
        time.strftime,
        time.asctime,
    ]


def _shifted(real: Callable[..., Any]) -> Callable[..., Any]:
    """A clock that is ahead; of a function that takes a time, where none is given."""
    now, seconds = time.time, _LATER.total_seconds()
    localtime = time.localtime
    if real is time.time:
        return lambda: now() + seconds
    if real is time.time_ns:
        nanoseconds = time.time_ns
        return lambda: nanoseconds() + int(seconds) * 1_000_000_000
    if real is time.strftime:
        return lambda form, *given: real(form, *(given or (localtime(now() + seconds),)))
    if real is time.asctime:
        return lambda *given: real(*(given or (localtime(now() + seconds),)))
    return lambda given=None: real(now() + seconds if given is None else given)


def _modules() -> Iterator[Any]:
    """Those that may be the job's, and `time` itself."""
    for name, module in list(sys.modules.items()):
        if module is time or (may_be_the_jobs(name) and hasattr(module, "__dict__")):
            yield module


@contextmanager
def _datetime_shifted() -> Iterator[None]:
    # `datetime.now` asks the system itself, and people hold the class under names of their own: so
    # two methods of the class are others for a while. `today` asks `time.time`.
    (methods,) = gc.get_referents(datetime.__dict__)
    real = {name: methods[name] for name in ("now", "utcnow")}

    def now(cls: type[datetime], tz: tzinfo | None = None) -> datetime:
        found: datetime = real["now"].__get__(None, cls)(tz)
        return found + _LATER

    def utcnow(cls: type[datetime]) -> datetime:
        found: datetime = real["utcnow"].__get__(None, cls)()
        return found + _LATER

    try:
        methods.update(now=classmethod(now), utcnow=classmethod(utcnow))
        pythonapi.PyType_Modified(py_object(datetime))
        yield
    finally:
        methods.update(real)
        pythonapi.PyType_Modified(py_object(datetime))


def one_instance_a_row(pickled: bytes) -> KeyedProcessFunction:
    """A function each of whose rows and timers meets an instance that was just opened.

    That is what happens where every epoch has one row. Functions that keep their fields by
    themselves, as operator state or as long as their worker lives, are as they are.
    """
    function: Any = cloudpickle.loads(pickled)
    if function.long_lived or isinstance(function, CheckpointedFunction):
        kept: KeyedProcessFunction = function
        return kept
    contexts: list[_AskedOnce] = []

    def called(name: str) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            mine: Any = cloudpickle.loads(pickled)
            with ExitStack() as stack:
                stack.callback(mine.close)
                mine.open(contexts[0])
                mine.open_epoch(contexts[0])
                made = getattr(mine, name)(*given)
                if isinstance(made, Iterator):
                    return _closed_after(made, stack.pop_all())
                return made

        return call

    replaced: dict[str, Callable[..., Any]] = {
        "open": lambda context: contexts.append(_AskedOnce(context)),
        "open_epoch": _nothing,
        "close": _nothing,
        **{name: called(name) for name in _CALLED_FOR_ROWS if hasattr(function, name)},
    }
    for name, instead in replaced.items():
        # Whatever the class says of that: it may be a frozen dataclass.
        object.__setattr__(function, name, instead)
    one: KeyedProcessFunction = function
    return one


class _AskedOnce:
    """The context of an epoch for instance after instance: each state is declared by the first."""

    def __init__(self, context: RuntimeContext) -> None:
        self._context = context
        self._handles: dict[tuple[str, str], Any] = {}

    def __getattr__(self, name: str) -> Any:
        given = getattr(self._context, name)
        if not name.startswith("get_"):
            return given

        def handle(descriptor: Any, *more: Any) -> Any:
            if (name, descriptor.name) not in self._handles:
                self._handles[name, descriptor.name] = given(descriptor, *more)
            return self._handles[name, descriptor.name]

        return handle


def _closed_after(made: Iterator[Any], stack: ExitStack) -> Iterator[Any]:
    """What a generator makes, whose instance is open while it runs."""
    with stack:
        yield from made


def _nothing(*_: Any) -> None:
    """In the place of what each instance does for itself."""
