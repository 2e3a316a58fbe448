"""Descriptors: how a user names a piece of keyed state and says what it holds.

Called by user functions in ``open``; read by the keyed state store and written into manifests.
Types are Spark DDL ("long", "struct<n:long,name:string>"), so that state has a schema that other
tools can read. Knows no storage.
"""

import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

from moorage_state.codecs import checker
from moorage_state.timetolive import StateTtlConfig
from moorage_state.types import parse_type

StateKind = Literal["value", "list", "map", "reducing", "aggregating"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")

_Reduce = Callable[[Any, Any], Any]


def _checked_name(name: str, what: str = "a state name") -> str:
    given: Any = name
    if not isinstance(given, str) or not _NAME.match(given):
        raise ValueError(
            f"{what} starts with a letter or digit and has up to 63 letters, digits, "
            f"dots, dashes or underscores: name={name!r}"
        )
    return name


class _Declared:
    """What all descriptors share; they are frozen but for the time to live and who may ask."""

    __slots__ = ()

    def enable_time_to_live(self, config: StateTtlConfig) -> Self:
        """Let this state expire; before the state is asked for. Returns the descriptor itself."""
        object.__setattr__(self, "ttl", _checked_ttl(config))
        return self

    def queryable(self, name: str) -> Self:
        """Let what is committed of this state be looked up from outside of the job under `name`.

        Before the state is asked for; the name is the job's, so no two of its states may have the
        same. Returns the descriptor itself. Raises ValueError for an illegal name.
        """
        object.__setattr__(self, "queryable_name", _checked_name(name, "a queryable name"))
        return self


def _checked_ttl(config: Any) -> Any:
    if config is not None and not isinstance(config, StateTtlConfig):
        raise TypeError(
            f"a time to live is declared with a StateTtlConfig: got={config!r:.100} of type "
            f"{type(config).__name__}"
        )
    return config


def _check(name: str, ddl: str, ttl: Any, queryable_name: str) -> None:
    _checked_name(name)
    if queryable_name:
        _checked_name(queryable_name, "a queryable name")
    try:
        parse_type(ddl)
    except ValueError as error:
        raise ValueError(f"{error} state={name}") from None
    _checked_ttl(ttl)


@dataclass(frozen=True, slots=True)
class ValueStateDescriptor(_Declared):
    """One value per key. `type` is a Spark DDL type.

    Attributes:
        default: what `value` gives, anew each time, where nothing is stored; it is never stored
            itself, so another one may be declared over state that is there.

    Raises:
        StateTypeError: when `default` is not of the type.
        ValueError: for an illegal name or a type that is not known.
    """

    kind: ClassVar[StateKind] = "value"
    name: str
    type: str
    ttl: StateTtlConfig | None = field(default=None, hash=False)
    queryable_name: str = field(default="", hash=False, kw_only=True)
    default: Any = field(default=None, hash=False, kw_only=True)

    def __post_init__(self) -> None:
        _check(self.name, self.type, self.ttl, self.queryable_name)
        if self.default is not None:
            checker(self.type, self.name)(self.default)


@dataclass(frozen=True, slots=True)
class ListStateDescriptor(_Declared):
    """A list per key; `type` is the Spark DDL type of one element.

    Raises:
        ValueError: for an illegal name or a type that is not known.
    """

    kind: ClassVar[StateKind] = "list"
    name: str
    type: str
    ttl: StateTtlConfig | None = field(default=None, hash=False)
    queryable_name: str = field(default="", hash=False, kw_only=True)

    def __post_init__(self) -> None:
        _check(self.name, self.type, self.ttl, self.queryable_name)


@dataclass(frozen=True, slots=True)
class MapStateDescriptor(_Declared):
    """A map per key; `key_type` must be a type that keys may have (no float, no container).

    Raises:
        ValueError: for an illegal name or a type that is not known.
    """

    kind: ClassVar[StateKind] = "map"
    name: str
    key_type: str
    type: str
    ttl: StateTtlConfig | None = field(default=None, hash=False)
    queryable_name: str = field(default="", hash=False, kw_only=True)

    def __post_init__(self) -> None:
        _check(self.name, self.type, self.ttl, self.queryable_name)
        if not parse_type(self.key_type).is_key:
            raise ValueError(
                f"a map state key cannot be of this type: name={self.name} "
                f"key_type={self.key_type}; use a string, integer, boolean, date, timestamp, "
                f"decimal or binary"
            )


@dataclass(frozen=True, slots=True)
class ReducingStateDescriptor(_Declared):
    """One value per key, to which added values are reduced; `type` is the Spark DDL type of both.

    Attributes:
        reduce: an associative function of two values that changes neither; or the name of one
            that is known: `sum`, `min` or `max`, which take whole columns at once.

    Raises:
        TypeError: when `reduce` is neither.
        ValueError: for an illegal name, a type that is not known, or an unknown function's name.
    """

    kind: ClassVar[StateKind] = "reducing"
    name: str
    type: str
    reduce: _Reduce | Literal["sum", "min", "max"]
    ttl: StateTtlConfig | None = field(default=None, hash=False)
    queryable_name: str = field(default="", hash=False, kw_only=True)

    def __post_init__(self) -> None:
        _check(self.name, self.type, self.ttl, self.queryable_name)
        if isinstance(self.reduce, str):
            if self.reduce not in {"sum", "min", "max"}:
                raise ValueError(
                    f"a known reduce function is sum, min or max: name={self.name} "
                    f"reduce={self.reduce!r}; give a function of two values for any other"
                )
        elif not callable(self.reduce):
            raise TypeError(
                f"reduce is a function of two values: name={self.name} "
                f"got={type(self.reduce).__name__}"
            )


class AggregateFunction(ABC):
    """How values get into an accumulator, and a result out of it."""

    @abstractmethod
    def create_accumulator(self) -> Any:
        """An accumulator into which nothing was added."""

    @abstractmethod
    def add(self, value: Any, accumulator: Any) -> Any:
        """The accumulator after `value` was added; it may be the same object, changed."""

    @abstractmethod
    def get_result(self, accumulator: Any) -> Any:
        """What came of the values that were added; must not change the accumulator."""

    def merge(self, one: Any, other: Any) -> Any:
        """The accumulator that has the values of both; only needed where namespaces merge."""
        raise NotImplementedError(
            f"{type(self).__name__} does not define merge(one, other), which merging needs"
        )


@dataclass(frozen=True, slots=True)
class AggregatingStateDescriptor(_Declared):
    """An accumulator per key; `type` is its Spark DDL type.

    Raises:
        TypeError: when `function` is no `AggregateFunction`.
        ValueError: for an illegal name or a type that is not known.
    """

    kind: ClassVar[StateKind] = "aggregating"
    name: str
    type: str
    function: AggregateFunction
    ttl: StateTtlConfig | None = field(default=None, hash=False)
    queryable_name: str = field(default="", hash=False, kw_only=True)

    def __post_init__(self) -> None:
        _check(self.name, self.type, self.ttl, self.queryable_name)
        given: Any = self.function
        if not isinstance(given, AggregateFunction):
            raise TypeError(
                f"an aggregating state needs an AggregateFunction: name={self.name} "
                f"got={type(given).__name__}"
            )


@dataclass(frozen=True, slots=True)
class FoldingStateDescriptor(_Declared):
    """Deprecated: use `AggregatingStateDescriptor`, which may take over what this one stored.

    Attributes:
        initial: the accumulator before the first value; copied by being encoded.
        fold: a function of the accumulator and a value that gives the next accumulator.

    Raises:
        TypeError: when `fold` is no function.
        ValueError: for an illegal name or a type that is not known.
    """

    kind: ClassVar[StateKind] = "aggregating"  # it takes their place
    name: str
    type: str
    initial: Any
    fold: _Reduce
    ttl: StateTtlConfig | None = field(default=None, hash=False)
    queryable_name: str = field(default="", hash=False, kw_only=True)

    def __post_init__(self) -> None:
        _check(self.name, self.type, self.ttl, self.queryable_name)
        if not callable(self.fold):
            raise TypeError(
                f"fold is a function of an accumulator and a value: name={self.name} "
                f"got={type(self.fold).__name__}"
            )
        warnings.warn(
            f"FoldingStateDescriptor is deprecated, use AggregatingStateDescriptor: "
            f"name={self.name}",
            DeprecationWarning,
            stacklevel=3,
        )


StateDescriptor = (
    ValueStateDescriptor
    | ListStateDescriptor
    | MapStateDescriptor
    | ReducingStateDescriptor
    | AggregatingStateDescriptor
    | FoldingStateDescriptor
)


def require_descriptor(given: Any, expected: type | None = None) -> None:
    """Raise `TypeError` for what is no descriptor, or none of the kind that is asked for."""
    if isinstance(given, expected or StateDescriptor):
        return
    wanted = "a state descriptor" if expected is None else expected.__name__
    raise TypeError(
        f"a state is asked for with its descriptor, by the method of its kind: expected={wanted} "
        f"got={given!r:.200} of type {type(given).__name__}"
    )
