"""Operator state dealt out anew, after ranges were opened that are others than the snapshot's.

Decides that this is an epoch of its own, before the first that has rows: one delta for each range,
prepared and committed as any other. So a run that dies in between leaves nothing, the next one
begins at the snapshot again, and from the commit on everything that knows epochs (rewinds, restarts
of servers, checkpoints) knows this one. Called by the driver. The rules are in
`moorage_state.operator_state`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from uuid import uuid4

from moorage.engine.fleet import RangeFleet, RangeId
from moorage.engine.range_access import BoundRange, LeasedRange, connect_to
from moorage_state.keygroups import KeyGroupRange, range_of
from moorage_state.operator_state import Mover, OperatorStateSchema
from moorage_state.server.client import StateClient

__all__ = ["OperatorMove", "redistribute"]


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
) -> int:
    """Deal out the operator state of all operators that need it; returns the epoch afterwards.

    That is `epoch` where nothing is to be done: no operator state, or ranges as before.

    Args:
        fleet: all ranges, open at `epoch`.
        uids: the operators that it serves.
        moves: by operator uid, what the snapshot had.

    Raises:
        Retryable, VersionGone, ...: as an epoch does; begin again from the snapshot.
    """
    ranges = [range_of(i, parallelism, max_parallelism) for i in range(parallelism)]
    starts = [groups.start for groups in ranges]
    needed = {u: m for u, m in moves.items() if m.schemas and list(m.before) != starts}
    if not needed:
        return epoch
    attempt = uuid4().hex
    digests: dict[RangeId, str] = {}
    with ExitStack() as stack:
        connect = _connections(stack, token)
        for uid in uids:
            bound = [
                BoundRange(connect(leased), leased, epoch + 1, attempt)
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


def _connections(stack: ExitStack, token: str) -> Callable[[LeasedRange], StateClient]:
    """Connects to each server once; all are closed with the stack."""
    clients: dict[str, StateClient] = {}

    def connect(leased: LeasedRange) -> StateClient:
        if leased.address not in clients:
            client = connect_to(leased.door, token)
            clients[leased.address] = stack.enter_context(closing(client))
        return clients[leased.address]

    return connect
