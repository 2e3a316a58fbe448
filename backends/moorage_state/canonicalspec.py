"""What the canonical files of a range have to say: the order that a state server gets for them.

Apart from what reads and writes files: a server that was never asked for any runs without Arrow.
"""

from typing import Any, Literal

import msgspec

from moorage_state.keygroups import SPARK_XXHASH64
from moorage_state.snapshots import Manifest, OperatorStateMeta, StateMeta

CANONICAL_FORMAT = 1

TIMERS = "_timers"
"""The name under which timers are kept beside the states, whose names never begin so."""

EVENT_TIME = "event_time"
"""The kind of timer that fires when the watermark passes it."""

PROCESSING_TIME = "processing_time"
"""The kind of timer that fires when the driver's clock passes it."""

TIMER_KINDS = (EVENT_TIME, PROCESSING_TIME)
"""All kinds, in the order that a key's timers have in a file."""

LAST_ACCESS = "last_access"
"""The column of states with a time to live: when a row was last used (milliseconds since 1970)."""

Kind = Literal[
    "value",
    "list",
    "map",
    "reducing",
    "aggregating",
    "timers",
    "split",
    "union",
    "broadcast",
    "raw",
    "raw_keyed",
]

SIDE_KINDS = frozenset({"split", "union", "broadcast", "raw", "raw_keyed"})
"""Kinds of states that belong to no key."""

LIST_KINDS = frozenset({"list", "split", "union", "raw"})
"""Kinds whose rows are elements at positions."""

OPERATOR_STATE_PREFIX = "_operator."
"""What the names of operator states begin with beside those of keyed ones."""


class FileMeta(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a file holds, all types as DDL.

    Attributes:
        format: the version of this format; always the first field.
        uid: the uid that the operator had when the file was written.
        state: the name of the state, or `_timers`.
        type: the type of the value, of a list's element, or of a map's value.
        start: the first key group that the file may have rows of; `end` is the last one, included.
        epoch: the last epoch that it contains.
        earlier: the types that values in the database may still have, oldest first. Files hold
            values of `type` only, and do not say it.
        ttl_ms: the state's time to live, 0 where it has none any more; None where it never had.
        now_ms: the processing time of the snapshot, at which state expires; 0 where nothing does.
            Not in the file.
        leaves_out_expired: whether no row is made of what has expired. Not in the file.
    """

    format: int = CANONICAL_FORMAT
    uid: str
    state: str
    kind: Kind
    type: str
    key_type: str | None = None
    key_types: tuple[str, ...]
    key_hash: str = SPARK_XXHASH64
    max_parallelism: int
    start: int
    end: int
    epoch: int
    earlier: tuple[str, ...] = ()
    ttl_ms: int | None = None
    namespace_types: tuple[str, ...] = ()
    now_ms: int = 0
    leaves_out_expired: bool = False


class CanonicalSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One range of one operator, and all that its files have to say.

    `max_parallelism`, `key_hash` and `epoch` are those of the manifest, `now_ms` is the processing
    time of that epoch.
    """

    uid: str
    start: int
    end: int
    epoch: int
    max_parallelism: int
    key_types: tuple[str, ...]
    states: tuple[StateMeta, ...]
    key_hash: str = SPARK_XXHASH64
    now_ms: int = 0
    operator_states: tuple[OperatorStateMeta, ...] = ()

    def metas(self) -> list[FileMeta]:
        """What the files say: of each state in declared order, then of the timers.

        Raises UserError.
        """
        declared = [self._meta(state) for state in self.states]
        sides = [self._side_meta(state) for state in self.operator_states]
        timers = FileMeta(state=TIMERS, kind="timers", type="bigint", **self._common())
        return [*declared, *sides, timers]

    def _side_meta(self, state: OperatorStateMeta) -> FileMeta:
        return FileMeta(
            state=state.label,
            kind=state.mode,
            type=state.type,
            key_type=state.key_type,
            **(self._common() | {"key_types": ()}),
        )

    def _meta(self, state: StateMeta) -> FileMeta:
        return FileMeta(
            state=state.name,
            kind=state.kind,
            type=state.type,
            key_type=state.key_type,
            earlier=tuple(state.earlier),
            ttl_ms=state.ttl_ms,
            namespace_types=tuple(state.namespace_types),
            now_ms=self.now_ms,
            leaves_out_expired=state.cleanup_in_full_snapshot,
            **self._common(),
        )

    def _common(self) -> dict[str, Any]:
        """What all files of the range say."""
        return {
            "uid": self.uid,
            "key_types": self.key_types,
            "key_hash": self.key_hash,
            "max_parallelism": self.max_parallelism,
            "start": self.start,
            "end": self.end,
            "epoch": self.epoch,
        }


def spec_of(manifest: Manifest, uid: str, start: int, end: int) -> CanonicalSpec:
    """The spec of one range of an operator as its manifest has it."""
    operator = manifest.operators[uid]
    return CanonicalSpec(
        uid=uid,
        start=start,
        end=end,
        epoch=manifest.epoch,
        max_parallelism=manifest.max_parallelism,
        key_types=tuple(operator.key_types),
        states=tuple(operator.states),
        key_hash=manifest.key_hash,
        now_ms=manifest.processing_time,
        operator_states=tuple(operator.operator_states),
    )
