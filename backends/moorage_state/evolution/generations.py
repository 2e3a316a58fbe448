"""Generations: how a value tells which of its state's types wrote it.

Layout of a stored value::

    generation 0:        the value's own bytes (MessagePack, or a pickle)
    generation 1 to 255: 0xc1 | generation (1) | the value's own bytes

0xc1 begins neither MessagePack nor a pickle. So a state whose type has never changed pays nothing,
and one that has changed pays two bytes a value. The manifest keeps the types of all generations of
a state; a canonical snapshot holds values of the last type only, and what is restored from one
begins at generation 0 again. A change that leaves the bytes as they are (`SchemaOutcome.AS_IS`)
makes no generation.

A value goes through every generation between its own and the last, so that it is the same whether
or not it was rewritten on the way: a field that was dropped and came back begins with its default.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from moorage_state.codecs import Decode, Encode, decoder, encoder, opaque_decoder
from moorage_state.errors import UserError
from moorage_state.evolution.compatibility import SchemaOutcome, compare, migration
from moorage_state.types import StateType, parse_type

MAX_GENERATIONS = 255
"""Changes of type between two canonical snapshots that a job restored from."""

_MARK = 0xC1
_HEAD = 2


class StateMigrationError(UserError):
    """A state is declared with a type that its stored values cannot be read as."""


def writer_of(ddl: str, earlier: Sequence[str] = (), state: str = "") -> Encode:
    """Like `codecs.encoder`, for a state that had other types before."""
    encode, mark = encoder(ddl, state), mark_of(len(earlier))
    return (lambda value: mark + encode(value)) if mark else encode


def mark_of(generation: int) -> bytes:
    """What stands before a value's own bytes in a generation; nothing in the first."""
    return bytes([_MARK, generation]) if generation else b""


def reader_of(ddl: str, earlier: Sequence[str] = (), *, opaque: bool = False) -> Decode:
    """Like `codecs.decoder`, for a state that had other types before.

    `opaque` leaves pickled objects the bytes they are. The function raises `ValueError` for a
    generation that there is not, and what a decoder raises.
    """
    types = [*earlier, ddl]
    decoders = [(opaque_decoder if opaque else decoder)(each) for each in types]
    if not earlier:
        return decoders[0]
    steps = _steps(types)
    # Through every generation in between, so that a value is the same whether or not it was
    # rewritten on the way: a field that was dropped and came back begins with its default.
    readers = [_composed([d, *steps[n:]]) for n, d in enumerate(decoders)]
    first, last = readers[0], len(earlier)
    newest = decoders[last]

    def decode(raw: bytes) -> Any:
        if raw[0] != _MARK:
            return first(raw)
        generation = raw[1]
        if generation == last:
            return newest(raw[_HEAD:])
        if not 0 < generation < last:
            raise ValueError(f"a value is of generation {generation}, and there are {last + 1}")
        return readers[generation](raw[_HEAD:])

    return decode


def raw_of_latest(ddl: str, earlier: Sequence[str]) -> Callable[[bytes], bytes]:
    """A function from a stored value to the bytes that it has in generation 0 of type `ddl`."""
    if not earlier:
        return lambda raw: raw
    last, decode, encode = len(earlier), reader_of(ddl, earlier), encoder(ddl)

    def rewritten(raw: bytes) -> bytes:
        if raw[0] == _MARK and raw[1] == last:
            return raw[_HEAD:]
        return encode(decode(raw))

    return rewritten


def declared_over(
    state: str, written: str, earlier: tuple[str, ...], declared: str
) -> tuple[str, tuple[str, ...]]:
    """The type and the earlier types of a state that is declared anew over stored values.

    `written` is the last type that values were written with, `earlier` those before. Raises
    StateMigrationError where values cannot be read as `declared`, or after too many changes.
    """
    found = compare(written, declared)
    if found.outcome is SchemaOutcome.INCOMPATIBLE:
        problems = "; ".join(str(problem) for problem in found.problems)
        raise StateMigrationError(
            f"a state cannot be read with the type it is declared with now: state={state} "
            f"{problems}; or give the new state another name"
        )
    if found.outcome is SchemaOutcome.RECONFIGURED:
        # What a value lacks is filled with the default of the time when the field came.
        return _with_defaults(parse_type(declared), parse_type(written)).ddl, earlier
    if found.outcome is SchemaOutcome.AS_IS:
        return declared, earlier
    if len(earlier) >= MAX_GENERATIONS:
        raise StateMigrationError(
            f"the type of a state has changed too often: state={state} "
            f"changes={len(earlier) + 1} most={MAX_GENERATIONS}; take a canonical savepoint with "
            f"the type before and start from it"
        )
    return declared, (*earlier, written)


def later_of(
    state: str, one: tuple[str, tuple[str, ...]], other: tuple[str, tuple[str, ...]]
) -> tuple[str, tuple[str, ...]]:
    """Of what two subtasks say of one state in one epoch, what holds for both.

    Raises StateMigrationError where they declare types that exclude each other.
    """
    if one == other:
        return one
    # One of them may not have declared the state (yet), and says what was known before.
    first, second = sorted((one, other), key=lambda schema: len(schema[1]))
    types = [*second[1], second[0]]
    at = len(first[1])
    # The type of a generation may have been widened in place.
    if compare(first[0], types[at]).outcome is SchemaOutcome.AS_IS:
        return second
    if at == len(types) - 1 and compare(types[at], first[0]).outcome is SchemaOutcome.AS_IS:
        return first
    raise StateMigrationError(
        f"subtasks declare one state with different types: state={state} types={first[0]} and "
        f"{second[0]}; declare a state in open, alike in every subtask"
    )


def _with_defaults(new: StateType, old: StateType) -> StateType:
    """`new`, which has the fields of `old`, with the defaults of `old`; for its spelling only."""
    if not new.children:
        return new
    children = map(_with_defaults, new.children, old.children)
    return replace(new, children=tuple(children), defaults=old.defaults)


def _steps(types: Sequence[str]) -> list[Callable[[Any], Any]]:
    return [migration(types[n], types[n + 1]) for n in range(len(types) - 1)]


def _composed(functions: Sequence[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    first, *rest = functions

    def composed(value: Any) -> Any:
        value = first(value)
        for function in rest:
            value = function(value)
        return value

    return composed
