"""Operator state of a job as its driver knows it: between epochs, and dealt out anew.

`OperatorStates` says what of it is known, `redistribute` deals it out where ranges are others than
the snapshot's. Called by the epoch runner and the driver; the rules are in
`moorage_state.operator_state`.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from uuid import uuid4

from moorage.api.checkpointed import CheckpointedFunction
from moorage.api.graph import JobGraph, OperatorNode
from moorage.engine.acks import EpochOutcome
from moorage.engine.fleet import RangeFleet, RangeId
from moorage.engine.range_access import BoundRange, Connect, RangeConnections
from moorage.engine.subtask_plan import OperatorStatePlan
from moorage_state.keygroups import KeyGroupRange, range_of
from moorage_state.operator_state import Mover, OperatorStateSchema


@dataclass(slots=True)
class OperatorStates:
    """Operator state of all operators of a job, between epochs.

    Attributes:
        schemas: by operator uid, the operator states known so far.
        restored: uids of the operators that have state from before.
        restored_checkpoint_id: what the run was restored from; None for an empty start.
        next_checkpoint_id: asked at the beginning of an epoch, when no checkpoint can begin.
    """

    schemas: dict[str, tuple[OperatorStateSchema, ...]] = field(default_factory=dict)
    restored: Collection[str] = ()
    restored_checkpoint_id: int | None = None
    next_checkpoint_id: Callable[[], int] = lambda: 1
    _changed: dict[str, dict[str, OperatorStateSchema]] = field(default_factory=dict)
    # Servers hold union lists under it, which another one of these must not take for its own.
    _identity: str = field(default_factory=lambda: uuid4().hex)
    _unions: Counter[str] = field(default_factory=Counter)

    def plans(self, graph: JobGraph) -> dict[str, OperatorStatePlan]:
        """By operator uid, the plans of the next epoch; only for operators that need one."""
        operators = [
            operator
            for operator in graph.operators
            if operator.broadcast is not None or isinstance(operator.function, CheckpointedFunction)
        ]
        if not operators:
            return {}
        checkpoint_id = self.next_checkpoint_id()
        return {operator.uid: self._plan(operator, checkpoint_id) for operator in operators}

    def changes(self, outcome: EpochOutcome) -> bool:
        """Whether some subtasks left a state as it is of which others change the type."""
        found = False
        for uid, states in outcome.reported_operator_states().items():
            before = {schema.name: schema for schema in self.schemas.get(uid, ())}
            told = self._changed.setdefault(uid, {})
            for name, reported in states.items():
                others = reported - {before.get(name)}
                # All of a state has one type between epochs: those that did not ask for it convert
                # theirs as well, which they are told in the attempt after this one.
                if len(reported) == 2 and len(others) == 1 and told.get(name) not in others:
                    (told[name],) = others
                    found = True
        return found

    def committed(
        self,
        schemas: Mapping[str, Sequence[OperatorStateSchema]],
        uids: Collection[str],
        union_writers: Collection[str] = (),
    ) -> None:
        """Take in an epoch that these operators went through, and what of it is known now.

        Args:
            union_writers: the operators of which some subtask wrote to a union list.
        """
        self.restored = frozenset(self.restored) | frozenset(uids)
        self.schemas.update({uid: tuple(states) for uid, states in schemas.items()})
        self._unions.update(union_writers)
        self._changed = {}

    def _plan(self, operator: OperatorNode, checkpoint_id: int) -> OperatorStatePlan:
        rows, branches = operator.broadcast, operator.broadcast_branches
        return OperatorStatePlan(
            restored=operator.uid in self.restored,
            restored_checkpoint_id=self.restored_checkpoint_id,
            checkpoint_id=checkpoint_id,
            schemas=self.schemas.get(operator.uid, ()),
            columns=tuple(rows.stream.schema.names) if rows is not None else (),
            inputs=tuple(b.node.uid for b in branches),
            time_columns=tuple(b.event_time or "" for b in branches),
            descriptors=rows.descriptors if rows is not None else (),
            changed=tuple(self._changed.get(operator.uid, {}).values()),
            union_version=f"{self._identity}.{self._unions[operator.uid]}",
        )


@dataclass(frozen=True, slots=True)
class OperatorMove:
    """What an operator had: its operator states, and under which key groups they lie."""

    schemas: Sequence[OperatorStateSchema]
    before: Sequence[int]


def redistribute(
    fleet: RangeFleet,
    token: str,
    uids: Iterable[str],
    parallelism: int,
    max_parallelism: int,
    *,
    moves: Mapping[str, OperatorMove],
    epoch: int,
    connect: Connect | None = None,
) -> int:
    """Deal out the operator state of all operators that need it; returns the epoch afterwards.

    That is `epoch` where nothing is to be done: no operator state, or ranges as before.

    Args:
        fleet: all ranges, open at `epoch`.
        moves: by operator uid, what the snapshot had.
        connect: see `run_subtask`.

    Raises:
        Retryable, VersionGone, ...: as an epoch does; begin again from the snapshot.
    """
    ranges = [range_of(i, parallelism, max_parallelism) for i in range(parallelism)]
    starts = [groups.start for groups in ranges]
    needed = {u: m for u, m in moves.items() if m.schemas and list(m.before) != starts}
    if not needed:
        return epoch
    # An epoch of its own, before the first that has rows: a run that dies in between leaves
    # nothing, and from the commit on everything that knows epochs knows this one.
    attempt = uuid4().hex
    digests: dict[RangeId, str] = {}
    with closing(RangeConnections(token, connect)) as connections:
        for uid in uids:
            bound = [
                BoundRange(connections.to(leased), leased, epoch + 1, attempt)
                for leased in fleet.leased(uid)
            ]
            prepared = _prepare(bound, ranges, needed.get(uid), epoch + 1)
            digests |= {(uid, subtask): digest for subtask, digest in enumerate(prepared)}
    fleet.commit(epoch + 1, digests)
    return epoch + 1


def _prepare(
    bound: Sequence[BoundRange],
    ranges: Sequence[KeyGroupRange],
    move: OperatorMove | None,
    epoch: int,
) -> list[str]:
    """The digests of the deltas of one operator's ranges; empty deltas where nothing moves."""
    if move is not None:
        mover = Mover(move.schemas, move.before, ranges, bound.__getitem__, epoch)
        for subtask, target in enumerate(bound):
            for frame in mover.frames(subtask):
                target.stage(frame)
    return [target.prepare() for target in bound]
