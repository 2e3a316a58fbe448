"""One run of the stream: from a restore point to the next stop, finish or rewind.

Decides what happens at each epoch boundary. Spark calls back with every micro-batch; the thread
that waits for the query looks after checkpoints, ticks and the request to stop. Both work under one
lock, so that a boundary is a boundary. Called by `run_job`, once per run token.
"""

import logging
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property, partial
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from moorage.api.graph import Branch, JobGraph
from moorage.driver.checkpointer import Checkpointer
from moorage.driver.context import DriverContext
from moorage.driver.environment import RangesMove, StoppedWaiting
from moorage.driver.figures import (
    Figures,
    queryable_of,
    strange_times_of,
    watermarks_of,
)
from moorage.driver.manifests import (
    Boundary,
    CheckpointReport,
    known_schemas,
    operator_schemas,
    operator_sides,
    ranges_of,
    watermarks_at,
)
from moorage.driver.query import (
    BatchCallback,
    FileBound,
    Halted,
    Liveness,
    end,
    error_of,
    is_active,
    start_query,
)
from moorage.driver.refusals import RestorePointCorrupt
from moorage.driver.request_handler import RequestHandler
from moorage.driver.requests import SampleRequest
from moorage.driver.restore_point import Choice, lay_sources
from moorage.driver.samples import Positions
from moorage.driver.standby import FIRST_RUN, NoCheckpoints
from moorage.driver.types import RunOutcome
from moorage.driver.views import OddRows
from moorage.engine.acks import EpochOutcome, OddCounts
from moorage.engine.epoch import EpochRunner, RunIdentity
from moorage.engine.event_time import Watermarks
from moorage.engine.operator_states import OperatorMove, redistribute
from moorage.engine.range_access import ExecutorLost
from moorage.engine.sparklog import COMPACT_INTERVAL, USUAL_INTERVAL, capture, compact_interval
from moorage.engine.subtask_plan import NEVER, UNKNOWN
from moorage.engine.task_failures import GOT_OVER, SparkEnded, failure_of, with_causes
from moorage_state.errors import (
    Bug,
    CorruptState,
    Fenced,
    MoorageError,
    UserError,
)
from moorage_state.snapshots import Cutter, Run, SnapshotRoot, run_token

_log = logging.getLogger(__name__)

_POLL_SECONDS = 0.1
_LOOK_SECONDS = 2.0
"""Between two looks at the number of executors."""

_REST_SECONDS = 0.2
"""The least time between an epoch and a tick, however short the job's interval is."""

_QUIET_SECONDS = 1.0
"""Beyond the interval: when Spark has brought nothing for so long, its sources have nothing."""


class Ticking:
    """Says when an epoch without input is due: for timers, where no row comes that brings one.

    Between two of them lies at least the job's epoch interval, and data goes first.
    """

    def __init__(
        self, *, timers: bool, epoch_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.timers = timers
        self._interval = max(epoch_seconds, _REST_SECONDS)
        self._clock = clock
        self._last = clock()

    def epoch_ended(self) -> None:
        """An epoch has just been committed."""
        self._last = self._clock()

    @property
    def quiet(self) -> bool:
        """Whether the sources seem to have nothing to read."""
        return self._clock() - self._last > _QUIET_SECONDS + self._interval

    def due(self, watermarks: Watermarks, next_timer: int, now_ms: int) -> bool:
        """Whether to run an epoch without input.

        Args:
            next_timer: the earliest processing-time timer; NEVER or UNKNOWN where that is so.
        """
        if not self.timers:
            return False
        if next_timer not in {NEVER, UNKNOWN} and next_timer <= now_ms:
            return self._clock() - self._last >= self._interval
        return self.quiet and (next_timer == UNKNOWN or watermarks.advanced)


class StreamRun:
    """One run; used once.

    Args:
        choice: what `context.completed` was told to begin from, and how it was chosen.
        must_restore: to begin with nothing would lose state.
    """

    def __init__(
        self, context: DriverContext, number: int, choice: Choice, *, must_restore: bool = False
    ) -> None:
        self._c = context
        self._choice = choice
        self._number = number
        self._run = run_token(context.writer.fence, number)
        self._lock = threading.RLock()
        self._failure: MoorageError | None = None
        self._lost: ExecutorLost | None = None
        self._halted = False
        self._runs_epoch, self._epoch_changes = False, threading.Lock()
        self._batch_id = -1
        self._first_batch: int | None = None
        self._spark_dir = context.scratch / f"spark-{self._run}"
        self._query_id: str | None = None
        self._cutter = Cutter()
        self._ticking = Ticking(
            timers=has_timers(context.graph), epoch_seconds=context.settings.epoch_seconds
        )
        self._counted = counting_consumers(context.graph)
        self._figures = Figures(context.fleet)
        self._last_look = time.monotonic()
        self._output = context.output
        self._checkpointer = _checkpointer(context, number, choice)
        self._runner = self._restore(self._checkpointer.restore(must_exist=must_restore))
        self._checkpointer.begin()
        if context.samples.request is not None:
            context.samples.begin(self._runner.epoch, self._positions.after(self._batch_id))
            self._tell_sample()
        self._runner.operator_states.next_checkpoint_id = lambda: self._checkpointer.next_id
        self._handler = RequestHandler(
            context, self._checkpointer, self._boundary, self._last_checkpoint, self._sample
        )
        self._bound = (
            FileBound(context.graph, self._spark_dir) if context.settings.bounded else None
        )
        self._liveness = Liveness(
            context.spark,
            context.reporter.lives,
            meanwhile=self._within_epoch,
            tell_lag=context.reporter.lag,
        )
        self._query: StreamingQuery | None = None
        self._callback = BatchCallback(self._on_batch)

    @property
    def checkpointer(self) -> Checkpointer | NoCheckpoints:
        """The run's checkpoints."""
        return self._checkpointer

    def drive(self) -> RunOutcome:
        """Run until the input ends or somebody asks to stop.

        Raises:
            VersionGone: local state is lost; begin another run from the last checkpoint.
            RangesMove: the run ended with a checkpoint; the next one has its ranges elsewhere.
            MoorageError: the run cannot go on, for the reason the error gives.
        """
        self._c.reporter.phase("running")
        self._query = self._start_query()
        outcome: RunOutcome | None = None
        try:
            outcome = self._until_end()
        finally:
            # Told to end, the process has no time for uploads that lead to nothing.
            goes_on = outcome in {None, RunOutcome.PROMOTED}
            job_ends = not goes_on or self._c.stop.is_set()
            self._end_query()
            self._checkpointer.abandon(job_ends=job_ends)
            self._handler.hand_back(job_ends=job_ends)
            # The next run lays a log of its own; that of many files is large.
            shutil.rmtree(self._spark_dir, ignore_errors=True)
        self._handler.let_go()
        return outcome

    def _until_end(self) -> RunOutcome:
        query = self._query
        while query is not None and self._failure is None and is_active(query):
            if self._c.stop.wait(_POLL_SECONDS):
                return self._stop()
            with self._liveness.watching(self._lock, query):
                if not self._ends_at_once():
                    self._between_epochs()
                    self._look_for_losses()
                    self._failure = self._failure or self._lost
                    self._tick_when_idle()
                if self._ends_at_once():
                    return self._handler.ended_at_once()
                if self._failure is not None:
                    break  # what follows asks lost hosts once more, and those answer late
                if self._handler.stopped():
                    self._halted = True
                    return RunOutcome.STOPPED
                if self._handler.may_rescale() and self._ended_for_another():
                    self._handler.decide_rescale(self._number)
                    raise RangesMove("subtasks are dealt out anew")
                if self._ranges_should_move() and self._ended_for_another():
                    raise RangesMove("subtasks move to other executors")
        self._raise_failure()
        if not self._c.settings.bounded:
            raise SparkEnded("the stream's query has ended by itself, and its input has no end")
        return self._finish()

    # -- starting --------------------------------------------------------------------------

    def _restore(self, manifest: SnapshotRoot | None) -> EpochRunner:
        """Open all ranges at the restore point, take back later output, lay Spark's log."""
        c = self._c
        if manifest:
            c.reporter.restoring(self._choice.path)
            if c.standby is not None:
                # Who leads has told them before it began; this one may restore for ever.
                c.reporter.messages(self._choice.warnings)
        else:
            c.reporter.phase("starting")
        for sentence in self._output.admit(manifest):
            c.reporter.message(sentence)
        epoch = manifest.epoch if manifest else 0
        handles = ranges_of(manifest) if manifest else {}
        checkpoint_id = manifest.checkpoint_id if manifest else 0
        try:
            builds, url = self._checkpointer.builds, self._choice.store_url
            opened = c.fleet.open(self._run, epoch, handles, checkpoint_id, url, builds)
            epoch = _deal_out(c, manifest)
            if manifest is not None:
                self._lay(manifest)
        except CorruptState as error:
            raise RestorePointCorrupt(error.message, error.path, error.advice) from error
        ranges = [(one.source, one.bytes_restored) for one in opened]
        c.reporter.opened(ranges, epoch, again=self._number not in {0, FIRST_RUN})
        _record_run(c, self._number, self._choice)
        self._restore_sinks(manifest)
        c.reporter.restored(self._choice.path, manifest, own=not self._choice.address)
        return EpochRunner(
            c.graph,
            c.planner,
            c.fleet,
            c.settings.parallelism,
            RunIdentity(c.writer.lineage, self._run, c.token),
            epoch=epoch,
            watermarks=watermarks_at(c.planner.clocks, manifest),
            schemas=known_schemas(manifest) if manifest else {},
            operator_states=operator_sides(manifest),
            now_ms=manifest.processing_time if manifest else 0,
            restored=manifest is not None,
            kv_states=c.kv_states,
        )

    def _restore_sinks(self, manifest: SnapshotRoot | None) -> None:
        for sentence in self._output.restore(self._number, manifest):
            self._c.reporter.message(sentence)
            if self._c.stop.is_set() or self._c.requests.stop_at_once is not None:
                raise StoppedWaiting  # the next start restores them once more

    def _lay(self, manifest: SnapshotRoot) -> None:
        if not manifest.source:
            return
        c = self._c
        log = lay_sources(self._choice, c.store.objects, self._spark_dir, c.input_uids, c.settings)
        if log is None:
            return
        text = c.settings.spark_conf.get(COMPACT_INTERVAL, "")
        usual = int(text) if text.isdecimal() else USUAL_INTERVAL  # Spark says what is wrong
        c.spark.conf.set(COMPACT_INTERVAL, str(compact_interval(log, usual)))
        self._cutter = Cutter(manifest)
        self._query_id = log.query_id
        self._first_batch = log.batch_id + 1
        self._batch_id = log.batch_id

    def _start_query(self) -> StreamingQuery:
        settings = self._c.settings
        name = f"{settings.name}-{self._run}"
        query = start_query(self._c.graph, settings, name, self._spark_dir, self._callback)
        if self._query_id is not None and query.id != self._query_id:
            query.stop()
            raise Bug(
                f"spark did not take up the laid log: query={query.id} expected={self._query_id}"
            )
        return query

    # -- epochs ----------------------------------------------------------------------------

    def _on_batch(self, frame: DataFrame, batch_id: int) -> None:
        """Spark's callback: one micro-batch becomes one epoch.

        Spark is not told why one fails. It searches what an error says by a regular expression
        that needs a stack as deep as the text is long, and a chain of errors overflows it.
        """
        try:
            self._run_batch(frame, batch_id)
        except Halted:
            raise Halted from None  # nor what a cancelled one died of
        except MoorageError as error:
            # An error that a person must mend is told where the run ends, and says where; one that
            # the job gets over by itself is no news. Frames of ours would hide either.
            why = f": {with_causes(error)}" if isinstance(error, GOT_OVER) else ""
            frames = not why and not isinstance(error, UserError)
            _log.warning("the epoch failed: batch=%d%s", batch_id, why, exc_info=frames)
            raise Halted from None

    def _run_batch(self, frame: DataFrame, batch_id: int) -> None:
        with self._lock:
            if self._halted or self._failure is not None:
                raise Halted
            if batch_id <= self._batch_id:
                _log.info("spark repeats a batch that is committed: batch=%d", batch_id)
                return
            try:
                self._require_next(batch_id)
                began = time.monotonic()
                self._c.reporter.epoch_began()
                outcome = self._run_epoch(frame)
                self._batch_id = batch_id
                self._committed(outcome, began)
            except MoorageError as error:
                failure = self._fails(error)
                if failure is error:
                    raise  # else it would be its own cause, and what that was be lost
                raise failure from error
            except (Py4JError, ConnectionError) as error:
                raise self._fails(failure_of(error)) from error
            except Exception as error:
                bug = Bug(f"unexpected error in the driver: {type(error).__name__}: {error}")
                raise self._fails(bug) from error

    def _fails(self, error: MoorageError) -> Exception:
        """What an epoch ends with: what a cancelled one dies of is not why."""
        if self._halted:
            return Halted()
        self._failure = self._lost or self._failure or error
        return self._failure

    def _ends_at_once(self) -> bool:
        """Whether nobody wants what the run does any more, not even the epoch under way."""
        standby, requests = self._c.standby, self._c.requests
        if requests.stop_at_once is not None or (standby and standby.is_over(requests)):
            self._halted = True
            return True
        return False

    def _run_epoch(self, frame: DataFrame | None) -> EpochOutcome:
        with self._epoch_changes:
            self._runs_epoch = True
        try:
            return self._runner.run(frame)
        finally:
            with self._epoch_changes:
                self._runs_epoch = False

    def _within_epoch(self) -> None:
        """In another thread than the epoch's: what need not wait for its end."""
        with self._epoch_changes:
            if self._runs_epoch:
                try:
                    self._checkpointer.within_epoch()
                except Exception as error:  # noqa: BLE001 - the run ends of it, not this thread
                    self._failure = self._failure or failure_of(error)
        self._end_epoch_in_vain()

    def _end_epoch_in_vain(self) -> None:
        """Within an epoch: cancel it once nobody wants it, or an executor that it needs is gone.

        Spark would start tasks of a lost one again and again, to ask a server that is no more. It
        is cancelled until it has ended: a part of it may only begin when others were.
        """
        if self._ends_at_once():
            self._cancel()
            return
        self._look_for_losses()
        if self._lost is not None:
            self._cancel()

    def _look_for_losses(self) -> None:
        """Note an executor that is gone, before an epoch that needs it finds it out."""
        if self._lost is None:
            try:
                self._c.fleet.refuse_lost()
            except ExecutorLost as error:
                self._lost = error
            except MoorageError:
                pass  # nobody can tell now; who needs to know finds it out

    def _cancel(self) -> None:
        with suppress(Py4JError, OSError):
            self._c.spark.sparkContext.cancelAllJobs()

    def _require_next(self, batch_id: int) -> None:
        expected, self._first_batch = self._first_batch, None
        if expected is not None and batch_id != expected:
            raise Bug(
                f"spark resumes at another batch than the restored one: batch={batch_id} "
                f"expected={expected}"
            )

    def _run_empty(self) -> None:
        """An epoch without input, for timers."""
        began = time.monotonic()
        self._c.reporter.epoch_began()
        self._committed(self._run_epoch(None), began)

    def _committed(self, outcome: Any, began: float) -> None:
        committed, committables = time.monotonic(), outcome.committables()
        self._output.commit_epoch(self._number, self._runner.epoch, committables)
        self._checkpointer.staged(self._runner.epoch, committables)
        if self._runner.sampling is not None:
            at = self._positions.after(self._batch_id)
            self._c.samples.committed(outcome.samples(), at)
            self._tell_sample()
        bound = self._bound.read() if self._bound else None
        rows = outcome.rows_in(self._counted)
        self._ticking.epoch_ended()
        size, seconds = self._c.fleet.state_bytes, time.monotonic() - began
        late = OddRows(late=outcome.late_rows, late_dropped=outcome.late_rows_dropped)
        odd = sum(map(_odd, outcome.odd_rows().values()), late)
        self._c.reporter.epoch(
            self._runner.epoch,
            rows,
            size,
            bound,
            seconds,
            odd,
            phases=self._figures.phases(outcome, self._runner.phases, began, committed),
            subtasks=self._figures.take(outcome),
            watermarks=watermarks_of(self._runner.watermarks),
        )
        strange = strange_times_of(self._runner.watermarks, self._runner.now_ms)
        self._c.reporter.strange_rows(strange | self._runner.first_rows.told)
        self._between_epochs()

    @cached_property
    def _positions(self) -> Positions:
        reads = {node.uid: node.files is not None for node in self._c.graph.inputs}
        return Positions(self._spark_dir, reads)

    def _sample(self, request: SampleRequest) -> None:
        """At a boundary: somebody wants a sample of the output from here on."""
        at = self._positions.after(self._batch_id)
        self._c.samples.ask(request, self._runner.epoch, at)
        self._tell_sample()

    def _tell_sample(self) -> None:
        self._runner.sampling = self._c.samples.sampling
        self._c.reporter.sample(self._c.samples.view)

    def _between_epochs(self) -> None:
        """At a boundary, under the lock: checkpoints that ended or are due, and requests."""
        self._c.reporter.clock(self._runner.clock_behind_ms)
        try:
            self._report(self._checkpointer.poll(self._runner.epoch, self._boundary))
            while (request := self._c.requests.take_one()) is not None:
                self._handler.take_up(request)
            self._look_at_executors()
        except MoorageError as error:
            self._failure = self._failure or error

    def _look_at_executors(self) -> None:
        now = time.monotonic()
        if now - self._last_look >= _LOOK_SECONDS:
            self._last_look = now
            self._c.reporter.executors(self._c.environment.executors())
            self._c.reporter.queryable(queryable_of(self._c.kv_states))

    def _tick_when_idle(self) -> None:
        """Without input, fire the timers that have become due since the last epoch."""
        runner, ticking = self._runner, self._ticking
        if self._failure or self._c.settings.bounded:
            return
        now_ms = runner.processing_time()
        if ticking.quiet:
            runner.watermarks = runner.watermarks.quiet_at(now_ms)
            # An input that became idle need not bring the watermark on, and then no epoch tells it.
            self._c.reporter.watermarks(watermarks_of(runner.watermarks))
        if not ticking.due(runner.watermarks, runner.next_timer, now_ms):
            return
        try:
            with self._liveness.beside():
                self._run_empty()
        except MoorageError as error:
            self._fails(error)

    def _report(self, reports: list[CheckpointReport]) -> None:
        for report in reports:
            self._c.reporter.checkpoint(report)

    def _boundary(self, *, finished: bool = False) -> Boundary:
        source: dict[str, Any] = {}
        if self._batch_id >= 0:
            uids = self._c.input_uids
            source = capture(self._spark_dir, self._batch_id, uids, self._cutter).to_json()
        return Boundary(
            epoch=self._runner.epoch,
            source=source,
            source_texts=self._cutter.taken(),
            watermarks=self._runner.watermarks,
            processing_time=self._runner.now_ms,
            schemas=dict(self._runner.schemas),
            operator_states=dict(self._runner.operator_states.schemas),
            finished=finished,
        )

    # -- ending ----------------------------------------------------------------------------

    def _stop(self) -> RunOutcome:
        """Asked to stop: let the epoch end, take a last checkpoint."""
        self._c.reporter.phase("stopping")
        with self._lock:
            self._halted = True
            self._raise_failure()
            self._last_checkpoint(finished=False)
        return RunOutcome.STOPPED

    def _finish(self) -> RunOutcome:
        """The input is used up: fire all timers, take the checkpoint that publishes the rest."""
        with self._lock:
            self._halted = True
            if self._ticking.timers and not self._c.settings.in_one_epoch:
                self._run_empty()
                self._raise_failure()
                self._runner.watermarks = self._runner.watermarks.drain()
                self._run_empty()
                self._raise_failure()
            self._last_checkpoint(finished=True)
        return RunOutcome.FINISHED

    def _ranges_should_move(self) -> bool:
        # Ranges that hold nothing are as well where they are.
        # A rescale moves them as well: two pauses would be one too many.
        busy = self._checkpointer.takes_savepoint or self._handler.rescales
        stays = self._c.settings.in_one_epoch or self._c.standby is not None
        return not stays and self._c.fleet.wants_to_move(busy=busy)

    def _ended_for_another(self) -> bool:
        """Take a checkpoint so that ranges can move; False, and the run goes on, if that fails."""
        if self._failure is not None:
            return False
        try:
            self._last_checkpoint(finished=False)
        except MoorageError as error:
            if isinstance(error, (Fenced, Bug)) or self._checkpointer.broken:
                raise
            self._c.reporter.phase("running", f"subtasks stay where they are for now: {error}")
            self._checkpointer.go_on()
            self._handler.give_up_rescale(error)
            self._handler.hand_back(job_ends=False)
            return False
        self._halted = True
        return True

    def _last_checkpoint(self, *, finished: bool = False) -> None:
        self._c.reporter.phase("checkpointing")
        # All input in one epoch: once that is there, nothing is left to do.
        done = finished or (self._c.settings.in_one_epoch and self._batch_id >= 0)
        epoch, at = self._runner.epoch, partial(self._boundary, finished=done)
        self._report(self._checkpointer.finish(epoch, at, finished=done))
        if finished:
            # Before anything else is waited for: a fence that is lost from here on is no failure.
            self._c.reporter.phase("finished")
        self._checkpointer.finish_chores(job_finished=finished)

    def _raise_failure(self) -> None:
        """Raise why the run cannot go on, if it cannot."""
        if self._failure is not None:
            raise self._failure
        if self._query is not None and (error := error_of(self._query)) is not None:
            raise failure_of(error) from error

    def _end_query(self) -> None:
        self._halted = True
        if self._query is not None:
            end(self._query)
        self._callback.let_go()


def _checkpointer(context: DriverContext, run: int, choice: Choice) -> Checkpointer | NoCheckpoints:
    if context.standby is not None:
        return NoCheckpoints(context.settings.name, choice.manifest)
    return Checkpointer(
        context.settings,
        context.graph,
        context.store,
        context.writer,
        context.fleet,
        run,
        completed=context.completed,
        housekeeper=context.housekeeper,
        output=context.output,
        reporter=context.reporter,
    )


def has_timers(graph: JobGraph) -> bool:
    """Whether any of its functions fires timers."""
    return any(o.function.has_timers for o in graph.operators)


def counting_consumers(graph: JobGraph) -> frozenset[str]:
    """Uids of consumers that together read each input about once: their rows are the input's."""
    seen: set[str] = set()
    chosen: set[str] = set()
    consumers: list[tuple[str, tuple[Branch, ...]]] = []
    for operator in graph.operators:
        mine = [feed.branch for feed in operator.feeds if feed.branch is not None]
        consumers.append((operator.uid, (*mine, *operator.broadcast_branches)))
    consumers += [(s.uid, s.upstream.branches) for s in graph.sinks]
    for uid, branches in consumers:
        inputs = {branch.node.uid for branch in branches}
        if inputs - seen:
            seen |= inputs
            chosen.add(uid)
    return frozenset(chosen)


def _odd(counts: OddCounts) -> OddRows:
    return OddRows(
        null_keys=counts.null_keys,
        null_rows=counts.null_rows,
        bad_times=counts.bad_times + counts.bad_broadcasts,
    )


def _record_run(context: DriverContext, number: int, choice: Choice) -> None:
    """Say in the log that this run begins, and from what: it holds after a crash, too."""
    policy = context.settings.restore
    followed = choice.explicit and not policy.explicit
    order_id = policy.order_id if followed else ""
    nonce = policy.nonce + 1 if followed and not order_id else 0
    manifest, own = choice.manifest, 0
    if choice.address and manifest is not None and manifest.lineage == context.writer.lineage:
        own = manifest.checkpoint_id
    fence = context.writer.fence
    claimed = choice.digest if policy.claim and choice.explicit else ""
    explicit = choice.explicit
    context.writer.append(Run(fence, number, choice.path, explicit, nonce, own, claimed, order_id))


def _deal_out(context: DriverContext, manifest: SnapshotRoot | None) -> int:
    """Give new subtasks their operator state; returns the epoch after which the run begins."""
    if manifest is None:
        return 0
    settings, uids = context.settings, [operator.uid for operator in context.graph.operators]
    moves = {
        uid: OperatorMove(operator_schemas(state), state.operator_state_owners)
        for uid, state in manifest.operators.items()
        if uid in uids
    }
    return redistribute(
        context.fleet,
        context.token,
        uids,
        settings.parallelism,
        settings.max_parallelism,
        moves=moves,
        epoch=manifest.epoch,
    )
