"""The epoch runner: prepare, acknowledge, commit; again where an attempt failed.

Decides when an epoch is committed: when one Spark job yielded exactly one acknowledgement per
subtask and all consumers agree. Called by the driver; knows nothing of checkpoints and logs.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain

from pyspark.sql import DataFrame

from moorage.api.graph import JobGraph, OperatorNode
from moorage.engine.acks import EpochOutcome, OddCounts, decode_ack, verify
from moorage.engine.blank_columns import BlankColumns, FirstRows, are_blank
from moorage.engine.columns import ACK_COLUMN
from moorage.engine.event_time import Watermarks
from moorage.engine.fleet import RangeFleet, RangeId
from moorage.engine.kv_states import KvStateLocationRegistry
from moorage.engine.local_aggregation import TwoPhases
from moorage.engine.operator_states import OperatorStates
from moorage.engine.plan import EpochFrame, EpochPlan, EpochPlanner
from moorage.engine.samples import Sampling
from moorage.engine.subtask import seldom_collecting, wall_ms
from moorage.engine.subtask_plan import NEVER, UNKNOWN
from moorage.engine.task_failures import failure_of
from moorage_state.errors import MoorageError, Retryable, StaleLease, UserError, VersionMismatch
from moorage_state.keyed.schema import StateSchema

_log = logging.getLogger(__name__)

_ATTEMPTS = 4
_TRY_AGAIN = (Retryable, StaleLease, VersionMismatch)


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """Which lineage and run the epochs belong to, and the token that servers ask for."""

    lineage: str
    run: str
    token: str

    def __repr__(self) -> str:
        return f"RunIdentity(lineage={self.lineage!r}, run={self.run!r})"


class EpochRunner:
    """Runs the epochs of one run, one at a time.

    Attributes:
        epoch: the last committed epoch.
        watermarks: event time progress after it.
        now_ms: its processing time; it never goes back within a lineage, whatever clocks do.
        phases: of the last epoch, with all its attempts, the seconds of "plan" (until Spark is
            asked), "run" (Spark's job), "source" (of it, until the first subtask began, by the
            clocks of the machines) and "commit".
        schemas: by operator uid, the states known so far.
        sampling: of what goes to sinks, from the next epoch on; None for no sample.
        first_rows: what the first rows of inputs had.

    Args:
        restored: there is state from before, so that nobody knows of what timers.
        clock: milliseconds since 1970 UTC.
        kv_states: told of the states that may be looked up.
    """

    def __init__(
        self,
        graph: JobGraph,
        planner: EpochPlanner,
        fleet: RangeFleet,
        parallelism: int,
        identity: RunIdentity,
        *,
        epoch: int,
        watermarks: Watermarks,
        schemas: Mapping[str, tuple[StateSchema, ...]],
        operator_states: OperatorStates | None = None,
        now_ms: int = 0,
        restored: bool = False,
        clock: Callable[[], int] = wall_ms,
        kv_states: KvStateLocationRegistry | None = None,
    ) -> None:
        self._graph = graph
        self._planner = planner
        self._fleet = fleet
        self._identity = identity
        self._expected = {o.uid: parallelism for o in graph.operators}
        self.epoch = epoch
        self.watermarks = watermarks
        self.schemas = dict(schemas)
        self.operator_states = operator_states or OperatorStates()
        self.now_ms = now_ms
        self.phases: dict[str, float] = {}
        self.sampling: Sampling | None = None
        self.first_rows = FirstRows(graph)
        self._clock = clock
        self._kv_states = kv_states or KvStateLocationRegistry({})
        at_first = (UNKNOWN if restored else NEVER,) * parallelism
        self._next_timers = dict.fromkeys(self._expected, at_first)
        self._two_phases = TwoPhases()

    def processing_time(self) -> int:
        """What the next epoch would have if it began now."""
        return max(self.now_ms, self._clock())

    @property
    def clock_behind_ms(self) -> int:
        """By how much this machine's clock is behind processing time, which waits for it."""
        return max(0, self.now_ms - self._clock())

    @property
    def next_timer(self) -> int:
        """A processing time before which no timer is due; NEVER, or UNKNOWN after a restore."""
        return min(chain.from_iterable(self._next_timers.values()), default=NEVER)

    def run(self, batch: DataFrame | None) -> EpochOutcome:
        """Run and commit the next epoch over `batch`, or over no rows (a tick).

        Raises:
            UserError: null keys or missing times where they are not allowed, too many values of a
                column that event time counts by, or the job's own code failed.
            VersionGone: local state is lost; the job must be rewound to a checkpoint.
            LocalDiskError: a volume is full; nothing of this epoch was committed.
            Retryable: several attempts failed for reasons of infrastructure.
        """
        # An epoch makes some objects for each of its subtasks, and no cycles of them.
        with seldom_collecting():
            return self._run(batch)

    def _run(self, batch: DataFrame | None) -> EpochOutcome:
        # Once for all attempts: a repeated one must see what the first saw.
        self.now_ms = self.processing_time()
        self.phases = dict.fromkeys(("plan", "run", "source", "commit"), 0.0)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                outcome = self._attempt(batch)
                break
            except _TRY_AGAIN as error:
                if attempt == _ATTEMPTS:
                    raise
                _log.warning(
                    "epoch attempt failed, trying again: epoch=%d attempt=%d of=%d: %s",
                    self.epoch + 1,
                    attempt,
                    _ATTEMPTS,
                    error,
                )
                self._fleet.recover()
        # What may refuse the epoch comes before the commit: nothing is undone after it.
        self._refuse_odd_rows(outcome)
        self.watermarks.require_room(outcome.value_times)
        with self._timed("commit"):
            self._commit(outcome)
        return outcome

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.phases[phase] += time.monotonic() - began

    def _attempt(self, batch: DataFrame | None) -> EpochOutcome:
        outcome = self._outcome(batch)
        # A subtask may have changed the type of a state that others did not ask for: they must hear
        # of it.
        return self._outcome(batch) if self.operator_states.changes(outcome) else outcome

    def _outcome(self, batch: DataFrame | None) -> EpochOutcome:
        with self._timed("plan"):
            frame = self._planner.plan(self._spec(), batch)
        asked = time.time()
        try:
            with self._timed("run"):
                acks = [decode_ack(bytes(row[ACK_COLUMN])) for row in _collect(frame)]
        finally:
            for kept in frame.persisted:
                kept.unpersist()
        outcome = verify(acks, self._expected, self._identity.run, self.epoch + 1)
        if begins := [ack.began_ms for ack in outcome.acks.values() if ack.began_ms]:
            self.phases["source"] += max(min(begins) / 1000 - asked, 0.0)
        return outcome

    def _spec(self) -> EpochPlan:
        return EpochPlan(
            lineage=self._identity.lineage,
            run=self._identity.run,
            epoch=self.epoch + 1,
            watermarks=self.watermarks,
            now_ms=self.now_ms,
            next_timers=self._next_timers,
            token=self._identity.token,
            ranges={uid: self._fleet.leased(uid) for uid in self._expected},
            schemas=self.schemas,
            operator_states=self.operator_states.plans(self._graph),
            added_up=frozenset(self._two_phases.uids),
            sampling=self.sampling,
            blank_columns_of=self.first_rows.to_look_at(),
        )

    def _commit(self, outcome: EpochOutcome) -> None:
        """Commit an epoch, then take it in."""
        digests: dict[RangeId, str] = {key: ack.delta for key, ack in outcome.acks.items()}
        schemas = {uid: tuple(states) for uid, states in outcome.schemas().items()}
        operator_states = outcome.operator_states()
        next_timers = {
            uid: tuple(outcome.acks[uid, subtask].next_timer for subtask in range(count))
            for uid, count in self._expected.items()
        }
        # Before the commit: with these types values of earlier ones can be read, not of later ones.
        self._kv_states.register(outcome.queryable(), self.schemas | schemas, self.now_ms)
        # A job of sinks only has no ranges.
        if digests:
            self._fleet.commit(self.epoch + 1, digests)
        self.epoch += 1
        self.watermarks = self.watermarks.after_epoch(
            outcome.max_event_time, self.now_ms, self.processing_time(), outcome.value_times
        )
        self._next_timers = next_timers
        self._two_phases.take_in(outcome, self.epoch)
        for uid, blank in outcome.blank_columns().items():
            self.first_rows.take(uid, blank)
        self.schemas.update(schemas)
        self.operator_states.committed(operator_states, self._expected, outcome.union_writers())

    def _refuse_odd_rows(self, outcome: EpochOutcome) -> None:
        operators = {o.uid: o for o in self._graph.operators}
        for uid, odd in outcome.odd_rows().items():
            operator = operators[uid]
            if odd.null_keys and operator.null_key == "fail":
                raise _null_keys(operator, odd, outcome.blank_columns().get(uid, {}))
            if odd.bad_times and operator.bad_time == "fail":
                raise _bad_times(operator, odd, outcome.blank_columns().get(uid, {}))
            if odd.bad_broadcasts and operator.bad_time != "drop":
                raise _bad_broadcasts(uid, odd)


_Blank = Mapping[int, BlankColumns]
"""By feed of an operator."""


def _null_keys(operator: OperatorNode, odd: OddCounts, blank: _Blank) -> UserError:
    keys = {n: feed.keyed.columns for n, feed in enumerate(operator.feeds)}
    misnamed = "" if odd.null_rows else _misnamed(operator, keys, blank)
    unread = f" rows_of_nulls={odd.null_rows}" if odd.null_rows else ""
    why = "; spark makes a row of nulls of a line that it cannot read" if odd.null_rows else ""
    return UserError(
        f"rows with a null key: operator={operator.uid} {_null_feeds(operator, odd)}{unread}{why}"
        f"{misnamed}; filter them out before key_by, or say null_key='drop' in the call with "
        f"uid={operator.uid!r}{_aside(operator)}"
    )


def _null_feeds(operator: OperatorNode, odd: OddCounts) -> str:
    """Where rows with a null key came from, each with its own key columns and how many."""
    feeds = operator.feeds
    return ", ".join(
        f"{feeds[position].told} key={list(feeds[position].keyed.columns)} rows={count}"
        for position, count in sorted(odd.null_feeds.items())
    )


def _aside(operator: OperatorNode) -> str:
    # A side output has one kind of rows, and an operator over two streams has two.
    return ", or give it the OutputTag of a side output" if operator.second is None else ""


def _misnamed(operator: OperatorNode, columns: Mapping[int, Sequence[str]], blank: _Blank) -> str:
    """The question of whether a column is called so in the data, where all rows have none."""
    asked = [
        f"; these are all {blank[n].rows} rows of {operator.feeds[n].told}: is the column's name "
        f"that of the data?"
        for n, names in columns.items()
        if are_blank(names, blank.get(n))
    ]
    return "".join(asked)


def _bad_times(operator: OperatorNode, odd: OddCounts, blank: _Blank) -> UserError:
    times = {n: [feed.event_time or ""] for n, feed in enumerate(operator.feeds)}
    return UserError(
        f"rows without an event time that can be read: operator={operator.uid} {odd.bad_time} "
        f"rows={odd.bad_times}{_misnamed(operator, times, blank)}; filter them out before "
        f"key_by, or say bad_time='drop' in the call with uid={operator.uid!r}{_aside(operator)}"
    )


def _bad_broadcasts(uid: str, odd: OddCounts) -> UserError:
    return UserError(
        f"broadcast rows without an event time that can be read: operator={uid} "
        f"{odd.bad_broadcast} rows={odd.bad_broadcasts}; filter them out before connect, or say "
        f"process(..., bad_time='drop'): a side output takes rows of the keyed stream alone"
    )


def _collect(frame: EpochFrame) -> list[Mapping[str, bytes]]:
    """Run the epoch's one action; failures come back as the errors that caused them."""
    try:
        rows: list[Mapping[str, bytes]] = frame.acks.collect()  # type: ignore[assignment]  # Rows are read by name
    except MoorageError:
        raise
    except Exception as exc:
        raise failure_of(exc) from exc
    return rows
