"""Runs an epoch several times from one version, and says what differs.

An epoch whose job dies before its commit runs again on the same rows: output and state must be the
same. Called by the harness.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import zip_longest
from typing import Any, NamedTuple

from pyspark import cloudpickle

from moorage.engine.acks import decode_ack
from moorage.engine.kept_functions import forget
from moorage.engine.task_failures import SubtaskFailure
from moorage.testing.circumstances import (
    HIGH,
    LOW,
    another_day,
    one_instance_a_row,
    random_numbers,
)
from moorage.testing.in_process import Attempt, Collector, InProcessJob, StagedFrames, Unpickle
from moorage_state.codecs import decoder
from moorage_state.deltas import decode_frame
from moorage_state.errors import UserError
from moorage_state.keyed.schema import StateSchema
from moorage_state.keylayout import (
    EXPIRIES,
    KEY_AT,
    KEYED_STATE,
    PROCESSING_TIMERS,
    expiry_parts,
    prefix_of,
    state_id,
    timer_parts,
)
from moorage_state.keys import KeyCodec

_ID_BYTES = 4
_UNCHANGED, _DELETED = "unchanged", "deleted"
_Place = tuple[str, bytes]
"""An operator, and a stored key."""
_Written = Mapping[_Place, bytes | str]
_PLAIN = ("value", "reducing", "aggregating")


class NotDeterministic(UserError):
    """An epoch came out otherwise when it was run again; Spark may do that to any."""

    code = "not_deterministic"


class _Again(NamedTuple):
    """One more attempt: what is other than in the first, in words and in fact."""

    words: str
    unpickle: Unpickle = cloudpickle.loads
    circumstance: Callable[[], AbstractContextManager[None]] = nullcontext
    crashed: bool = False


_AGAIN = (
    _Again("when it was run again"),
    _Again("on another day and at another hour", circumstance=another_day),
    _Again("with other random numbers", circumstance=lambda: random_numbers(LOW)),
    _Again("with other random numbers", circumstance=lambda: random_numbers(HIGH)),
    _Again(
        "with a new instance of the function, as every epoch and every crash may bring it",
        unpickle=one_instance_a_row,
        crashed=True,
    ),
)

_ADVICE = (
    "a function runs again on the same rows after a failure, and must send and keep the same: take "
    "time from ctx.timer_service() and not from clocks, seed random numbers with the key and make "
    "ids of it instead of uuid4, keep in state what rows change and not in fields of the function, "
    "its class or its module, sort a set before its order matters, and ask no service that may "
    "answer otherwise"
)


class _Found(NamedTuple):
    """What an attempt came to: rows by output, and what was written by operator and stored key."""

    acks: list[bytes]
    rows: Mapping[str, list[str]]
    written: _Written


class Replay:
    """Takes the place of `InProcessPlanner.rehearse` for one epoch of a job.

    Args:
        outputs: by name ("" for the main output), where rows arrive.
    """

    def __init__(self, job: InProcessJob, outputs: Mapping[str, Collector]) -> None:
        self._job = job
        self._outputs = outputs
        operators = job.graph.operators
        self._codecs = {operator.uid: KeyCodec(operator.key_types) for operator in operators}

    def __call__(self, attempt: Attempt) -> list[bytes]:
        """Run the epoch as it is, and again under each other circumstance.

        Raises:
            NotDeterministic: an attempt sent other rows, changed state otherwise, or failed.
        """
        first = self._found(attempt, cloudpickle.loads, nullcontext())
        for again in _AGAIN:
            if again.crashed:
                forget(self._job.lineage)
            try:
                found = self._found(attempt, again.unpickle, again.circumstance())
            except SubtaskFailure as failure:
                raise _failed(failure, again.words) from failure.__cause__
            for name, rows in first.rows.items():
                _compare_rows(name, rows, found.rows[name], again.words)
            self._compare_state(first, found, again.words)
        return found.acks

    def _found(
        self, attempt: Attempt, unpickle: Unpickle, circumstance: AbstractContextManager[None]
    ) -> _Found:
        with random_numbers(None), circumstance:
            acks, staged = attempt(unpickle)
        # As they are written: of two rows that are alike also what equals nothing, not itself, is.
        rows = {
            name: [repr(row) for _, rows in sorted(one.by_subtask().items()) for row in rows]
            for name, one in self._outputs.items()
        }
        return _Found(acks, rows, dict(_written(staged)))

    def _compare_state(
        self,
        first: _Found,
        again: _Found,
        words: str,
    ) -> None:
        known = _schemas(first.acks)
        for place in sorted({*first.written, *again.written}):
            # Of timers nothing is stored but their key.
            if first.written.get(place, _UNCHANGED) != again.written.get(place, _UNCHANGED):
                where, shown = self._described(*place, known)
                one, other = (_shown(some.written, place, shown) for some in (first, again))
                raise NotDeterministic(
                    f"the epoch changed state otherwise {words}: operator={place[0]} {where} "
                    f"first={one} again={other}; {_ADVICE}"
                )

    def _described(
        self, uid: str, entry: bytes, known: Mapping[_Place, StateSchema]
    ) -> tuple[str, Callable[[bytes], Any]]:
        """Key and state of a stored key, and what makes a value of what is stored there."""
        kind = entry[2]
        if kind == EXPIRIES:
            entry, kind = expiry_parts(entry)[1], KEYED_STATE
        if kind == KEYED_STATE:
            prefix = prefix_of(entry)
            schema = known.get((uid, entry[len(prefix) : len(prefix) + _ID_BYTES]))
            what = f"state={schema.name}" if schema is not None else "of=timers"
            shown = decoder(schema.type) if schema is not None and _is_plain(schema) else bytes
            return f"key={self._key(uid, prefix[KEY_AT:])} {what}", shown
        if kind <= PROCESSING_TIMERS:
            return f"key={self._key(uid, timer_parts(entry)[2])} of=timers", bytes
        return "of=operator state or broadcast state", bytes

    def _key(self, uid: str, raw: bytes) -> str:
        key = self._codecs[uid].decode(raw)
        return repr(key[0] if len(key) == 1 else key)


def _failed(failure: SubtaskFailure, words: str) -> NotDeterministic:
    """What is said of an attempt that failed although the first did not."""
    cause = failure.__cause__ or failure
    return NotDeterministic(
        f"the epoch failed {words}, and had not failed before: {type(cause).__name__}: {cause}; "
        f"{_ADVICE}"
    )


def _schemas(acks: list[bytes]) -> dict[_Place, StateSchema]:
    """By operator and stored id, the states that an attempt knew; not what timers keep."""
    return {
        (ack.uid, state_id(schema.name)): schema
        for ack in map(decode_ack, acks)
        for schema in ack.schemas
    }


def _written(staged: StagedFrames) -> Iterator[tuple[_Place, bytes | str]]:
    """The last value of each stored key, by operator; of deleted ranges their begin."""
    for lease, frames in staged.frames.items():
        for frame in map(decode_frame, frames):
            for start, _ in frame.ranges:
                yield (lease.uid, start), _DELETED
            for entry, raw in zip(frame.keys, frame.values, strict=True):
                yield (lease.uid, entry), _DELETED if raw is None else raw


def _is_plain(schema: StateSchema) -> bool:
    """Whether what is stored is the value and nothing else."""
    return schema.kind in _PLAIN and schema.ttl_ms is None and not schema.earlier


def _shown(some: _Written, place: _Place, value_of: Callable[[bytes], Any]) -> str:
    raw = some.get(place, _UNCHANGED)
    return str(raw) if isinstance(raw, str) else f"{value_of(raw)!r:.80}"


def _compare_rows(name: str, first: list[str], again: list[str], words: str) -> None:
    for number, (one, other) in enumerate(zip_longest(first, again, fillvalue="none")):
        if one != other:
            where = f"side_output={name}" if name else "output=main"
            raise NotDeterministic(
                f"the epoch sent another row {words}: {where} row={number} first={one} "
                f"again={other}; {_ADVICE}"
            )
