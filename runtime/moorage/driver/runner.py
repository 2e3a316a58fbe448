"""`run_job`: one job, from its manifest to its end, on this machine or on a cluster's executors.

Decides the order in which a job takes hold of things (lock, fence, restore point, Spark, servers)
and lets go of them, and what a failure means: rewind to the last checkpoint, or end. Called by the
command line, by the entry point of a driver in a cluster, and by tests.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from moorage.api.graph import JobGraph
from moorage.driver.context import DriverContext
from moorage.driver.control import ControlServer, control_path
from moorage.driver.environment import JobEnvironment, Platform, RangesMove, StoppedWaiting
from moorage.driver.figures import configuration_of, earlier_of, graph_view, outputs_of
from moorage.driver.housekeeping import Housekeeper
from moorage.driver.job_file import (
    build_graph,
    check_folders,
    check_job_file,
    stream_environment,
)
from moorage.driver.lineage import hold_lineage
from moorage.driver.local import LocalEnvironment
from moorage.driver.lookups import LookupSource, StateLookups
from moorage.driver.manifests import go_on_with_windows_of, view_of
from moorage.driver.output import HeldOutput, OutputKeeper
from moorage.driver.refusals import RestorePointCorrupt
from moorage.driver.reporter import Reporter
from moorage.driver.request_handler import let_go, let_go_of_checkpoints
from moorage.driver.requests import Requests, SampleRequest, Stopped
from moorage.driver.rescale import follow_manifest, in_force, resized
from moorage.driver.restore_point import (
    Choice,
    adopting,
    already_finished,
    check_fits,
    check_settings,
    choose,
)
from moorage.driver.rewinds import Rewinds, choose_beside, counted, pause_before_next, poll
from moorage.driver.run_status import RunStatus, run_status
from moorage.driver.samples import OutputSamples
from moorage.driver.savepoints import KnownSavepoints
from moorage.driver.session import spare_byte_counts
from moorage.driver.settings import JobSettings
from moorage.driver.standby import FIRST_RUN, Standby, StandbyRefused, held
from moorage.driver.stream_run import StreamRun
from moorage.driver.types import JobProgress, RunOptions, RunOutcome, RunResult
from moorage.engine.fleet import RangeFleet
from moorage.engine.kv_states import KvStateLocationRegistry
from moorage.engine.plan import EpochPlanner
from moorage.engine.task_failures import RunRefused, UserFunctionError
from moorage_api import StatefulSparkJob
from moorage_state.coordinator import CompletedCheckpointStore, JobEnd
from moorage_state.errors import (
    Bug,
    CorruptState,
    Fenced,
    LocalDiskError,
    Retryable,
    StaleLease,
    UserError,
    VersionGone,
    VersionMismatch,
)
from moorage_state.snapshots import CheckpointStore, Entry, LogWriter, checkpoint_path

_REWIND = (VersionGone, VersionMismatch, StaleLease, Retryable)


def run_job(
    job: StatefulSparkJob,
    job_dir: Path,
    options: RunOptions,
    listener: Callable[[JobProgress], None],
) -> RunResult:
    """Run `job`, whose manifest lies in `job_dir`, until its input ends or it is told to stop.

    Raises:
        StoreRefused: the checkpoint directory is missing, unreadable, held or owned by another.
        CorruptState: the restore point is damaged and nothing may take its place.
        Fenced: another driver took over; nothing was committed since.
        NoExecutors: Spark did not get any.
        SparkNotStarted: it did not start on a cluster.
        SparkEnded: it has ended by itself.
        UserError: the job file, its function, or what it asks for is wrong.
        LocalDiskError: the local volume is full; what is committed is in the last checkpoint.
    """
    started = time.monotonic()
    settings = JobSettings.of(job, job_dir, options.restore, options.orders)
    check_job_file(settings.main_file)
    reporter = Reporter(listener)
    reporter.standby(stands_by=options.orders is not None and options.orders.standby)
    reporter.messages(check_folders(settings.main_file, settings.py_files))
    reporter.job(settings.parallelism, settings.max_parallelism)
    with contextlib.ExitStack() as stack:
        stack.callback(options.requests.close, f"the job has ended: job={settings.name}")
        try:
            warm = stack.enter_context(_standing_by(settings, options, reporter))
        except StoppedWaiting:
            return RunResult(RunOutcome.STOPPED, 0, 0, seconds=time.monotonic() - started)
        # Before the choice: nobody else adds a checkpoint from here on.
        writer, store = stack.enter_context(hold_lineage(settings, options, reporter))
        choice = choose(store, writer.entries, settings)
        claimed = choice.digest if settings.restore.claim else ""
        reporter.earlier(earlier_of(writer.entries, claimed), settings.retain)
        reporter.messages(choice.warnings)
        if choice.manifest is None and choice.finished is None:
            reporter.message(f"starting empty: no checkpoint yet in {settings.checkpoint_dir}")
        if already_finished(choice, settings):
            completed = _completed(settings, writer, store)
            return _finished_before(choice, completed, reporter, started)
        settings = _fitted(settings, writer.entries, choice, reporter)
        follow_manifest(settings, writer, choice)
        reporter.configuration(configuration_of(settings))
        lookups = options.lookups or StateLookups()
        options = replace(options, lookups=lookups)
        if options.control:
            _listen(stack, settings, options.requests, lookups, reporter)
        run: StreamRun | None = None
        context: DriverContext | None = None
        try:
            if warm is None:
                warm = stack.enter_context(_warm(settings, options, writer.lineage, reporter))
            warm.lead(writer)
            context = stack.enter_context(
                _context(settings, options, writer, store, reporter, warm)
            )
        except StoppedWaiting:
            outcome = RunOutcome.STOPPED
        else:
            try:
                outcome, run = _drive(context, choice)
            except BaseException as error:
                options.ended(error)
                _failed(context, options, error)
                raise
        last = run.checkpointer.last if run is not None else None
        result = RunResult(
            outcome=outcome,
            epoch=reporter.progress.epoch,
            rows_total=reporter.progress.rows_total,
            seconds=time.monotonic() - started,
            last_checkpoint=view_of(last) if last else reporter.progress.last_checkpoint,
            restored_from=choice.path,
            odd=reporter.progress.odd,
        )
        # First: who is told of the end hears no more of this process. Where it ends too early, the
        # next one finds in the log that the job has finished, and deletes what is left.
        _ended_well(context, outcome)
        options.ended(result)
    return result


def _fitted(
    settings: JobSettings, entries: Sequence[Entry], choice: Choice, reporter: Reporter
) -> JobSettings:
    """The settings with what the lineage and the restore point decide.

    Raises RestorePointIncompatible: it cannot be had with them.
    """
    settings, asked = adopting(settings, choice.manifest), settings
    if settings.backend.identifier != asked.backend.identifier:
        reporter.message(
            f"the state's own backend is kept: backend={settings.backend.identifier} "
            f"default={asked.backend.identifier}; name another in spec.state.backend to change"
        )
    settings = in_force(settings, entries)
    if choice.manifest is not None:
        check_settings(choice.manifest, settings)
    reporter.job(settings.parallelism, settings.max_parallelism)
    return settings


@dataclass(frozen=True, slots=True)
class _Warm:
    """What is the same for whatever a driver runs: it takes long to come by.

    Attributes:
        standby: how the driver stood by with it before; None where it did not.
    """

    environment: JobEnvironment
    platform: Platform
    graph: JobGraph
    standby: Standby | None = None

    def lead(self, writer: LogWriter) -> None:
        """The lineage is claimed. Raises Bug: it is another one than was stood by for."""
        if self.standby is None:
            return
        if self.standby.lineage != writer.lineage:
            raise Bug(f"another lineage lies there than was stood by for: found={writer.lineage}")
        for request in self.standby.promotions:
            request.answer(None)


@contextlib.contextmanager
def _standing_by(
    settings: JobSettings, options: RunOptions, reporter: Reporter
) -> Iterator[_Warm | None]:
    """Run the job with nothing coming out, until the driver is told to lead; None if it leads.

    Raises:
        StoppedWaiting: it was told to end instead.
        StandbyRefused: there is nothing to begin with, or the job's input has an end.
    """
    if options.orders is None or not options.orders.standby:
        yield None
        return
    if settings.bounded:
        raise StandbyRefused(
            f"a job whose input ends cannot be stood by for: job={settings.name} "
            f"spec.bounded=true; set spec.upgrade.strategy to Restart"
        )
    if settings.backend.stored:
        raise StandbyRefused(
            f"files of the state are in the store alone, where the running version deletes them: "
            f"backend={settings.backend.identifier}; set spec.upgrade.strategy to Restart"
        )
    standby = Standby(settings)
    choice = standby.choose()
    _, entries = standby.look()
    settings = _fitted(settings, entries, choice, reporter)
    options = replace(options, lookups=None)
    with _warm(settings, options, standby.lineage, reporter) as warm:
        standby.check_sinks(warm.graph)
        _run_beside(settings, options, reporter, warm, standby, choice)
        del choice, entries  # the job may run on for a year
        reporter.standby(stands_by=False)
        yield replace(warm, standby=standby)


def _run_beside(
    settings: JobSettings,
    options: RunOptions,
    reporter: Reporter,
    warm: _Warm,
    standby: Standby,
    choice: Choice,
) -> None:
    """Run until the driver is to lead; nothing of it is left then. Raises as `_standing_by`."""
    store, _ = standby.look()
    with _context(settings, options, standby.log(), store, reporter, warm, standby) as context:
        # Once more: of those that were there before Spark was, the job may have let go.
        outcome, _ = _drive(context, choose_beside(context, standby, choice))
    if outcome is not RunOutcome.PROMOTED:
        raise StoppedWaiting


def _listen(
    stack: contextlib.ExitStack,
    settings: JobSettings,
    requests: Requests,
    lookups: StateLookups,
    reporter: Reporter,
) -> None:
    """Let this user's other commands reach the job; it runs without them, too."""
    name, where = settings.name, settings.checkpoint_dir

    def status() -> RunStatus:
        return run_status(name, where, reporter.progress, datetime.now(UTC))

    try:
        stack.enter_context(ControlServer(control_path(where), requests, lookups, status))
    except (OSError, UserError) as error:
        reporter.message(f"savepoints cannot be asked for: {error}")


def _finished_before(
    choice: Choice, completed: CompletedCheckpointStore, reporter: Reporter, started: float
) -> RunResult:
    """There is nothing to run, but perhaps to delete: the driver before may have ended too early.

    What is deleted is not what the run began from: nobody can go back to it.
    """
    epoch = choice.finished.epoch if choice.finished else None
    reporter.restored(choice.path, choice.manifest)
    reporter.phase("finished")
    let_go_of_checkpoints(completed, reporter, JobEnd.FINISHED)
    left = choice.path in {checkpoint_path(one.checkpoint_id) for one in completed.checkpoints}
    result = RunResult(
        outcome=RunOutcome.FINISHED,
        epoch=reporter.progress.epoch if epoch is None else epoch,
        rows_total=0,
        seconds=time.monotonic() - started,
        last_checkpoint=reporter.progress.last_checkpoint if left else None,
        restored_from=choice.path if left else None,
        already=True,
    )
    if not left:
        reporter.nothing_left(result.epoch)
    return result


def _ended_well(context: DriverContext | None, outcome: RunOutcome) -> None:
    """A job that was told to stop goes on with the next start; one whose input ended does not."""
    if context is not None and outcome is RunOutcome.FINISHED:
        let_go_of_checkpoints(context.completed, context.reporter, JobEnd.FINISHED)


def _failed(context: DriverContext, options: RunOptions, error: BaseException) -> None:
    """Only the job's own fault ends it for good: the next start may be luckier after others."""
    own = isinstance(error, UserFunctionError) and not isinstance(error, RunRefused)
    # With orders there is an operator, which starts the driver again.
    if own and options.orders is None:
        let_go_of_checkpoints(context.completed, context.reporter, JobEnd.FAILED)


def _drive(context: DriverContext, choice: Choice) -> tuple[RunOutcome, StreamRun | None]:
    """Run after run, until one ends well or nobody wants another; no run if there was none."""
    try:
        return _runs(context, choice)
    except StoppedWaiting:
        _answer_at_once(context)
        return RunOutcome.STOPPED, None


def _runs(context: DriverContext, choice: Choice) -> tuple[RunOutcome, StreamRun | None]:
    """Run after run until one ends well: one that loses its local state is followed by another."""
    rewinds = Rewinds()
    damaged: dict[int, CorruptState] = {}
    number = 0 if context.standby is None else FIRST_RUN
    must_restore = context.settings.restore.mode == "Path"
    while True:
        if context.standby is not None and context.standby.is_over(context.requests):
            return RunOutcome.PROMOTED, None
        if choice.manifest is not None:
            check_fits(choice.manifest, context.graph, context.settings)
        go_on_with_windows_of(context.graph, choice.manifest)
        context.completed.begin_from(choice.manifest, choice.path or "", own=not choice.address)
        run: StreamRun | None = None
        try:
            with _needing(context.directories):
                run = StreamRun(context, number, choice, must_restore=must_restore)
                return _drive_run(context, run), run
        except RangesMove as move:
            if context.stop.is_set():
                return RunOutcome.STOPPED, run
            # It ended with a checkpoint and has lost nothing: no rewind that counts.
            context.reporter.message(str(move))
            rewinds = Rewinds()
            choice = _choose_again(context, choice, damaged, StoppedWaiting())
        # Not any CorruptState: where output is damaged, an older checkpoint would publish it twice.
        except RestorePointCorrupt as error:
            # What runs already is damaged here and not in the store; what a person chose stays.
            if run is not None or choice.explicit:
                raise
            choice = _undamaged(context, choice, damaged, error)
        except _REWIND as error:
            rewinds = counted(context, rewinds, run, error)
            pause_before_next(context, rewinds, error)
            if run is not None:  # else the choice was not followed yet: the same once more
                choice = _choose_again(context, choice, damaged, error)
        completed = run is not None and run.checkpointer.last is not None
        must_restore = must_restore or completed or context.completed.latest is not None
        number, context = number + 1, resized(context)


def _answer_at_once(context: DriverContext) -> None:
    """The job was to stop at once, and did while it waited for executors: no run had begun."""
    request = context.requests.stop_at_once
    if request is not None:
        request.running()
        let_go(context, request, Stopped(context.reporter.progress.last_checkpoint))


def _undamaged(
    context: DriverContext, choice: Choice, damaged: dict[int, CorruptState], error: CorruptState
) -> Choice:
    """Another restore point in place of a damaged one; raises its error where there is none."""
    context.reporter.message(str(error))
    if choice.manifest is not None and not choice.address:
        damaged[choice.manifest.checkpoint_id] = error
    other = _choose_again(context, choice, damaged, error)
    if other.path == choice.path and other is not choice:  # else none is wanted any more
        raise error
    return other


def _drive_run(context: DriverContext, run: StreamRun) -> RunOutcome:
    """Run it to its end; a plain UserError is no longer one of the manifest."""
    try:
        return run.drive()
    except CorruptState as error:
        if context.standby is None:
            raise
        # Whoever leads lets go of what a range is opened from again, long after it was restored.
        raise VersionGone(f"what the run began from may be gone by now: {error}") from error
    except UserError as error:
        if type(error) is UserError:
            raise RunRefused(*error.args) from error
        raise


@contextlib.contextmanager
def _needing(directories: Sequence[Path]) -> Iterator[None]:
    """Name it if one of these was removed: Spark and the servers only see effects."""
    before = [one for one in directories if one.is_dir()]
    try:
        yield
    except Fenced:
        raise
    except Exception as error:
        gone = next((one for one in before if not one.is_dir()), None)
        if gone is None:
            raise
        raise LocalDiskError(
            f"a working directory was removed while the job ran: path={gone}; keep cleaners of "
            f"temporary files away from it, or name another place with --local-dir"
        ) from error


def _choose_again(
    context: DriverContext,
    before: Choice,
    damaged: Mapping[int, CorruptState],
    error: Exception,
) -> Choice:
    """The restore point of the next run; what a person chose was followed. Raises as `_poll`.

    Args:
        before: that of the run before.
    """
    if context.standby is not None:
        return choose_beside(context, context.standby, before, damaged)
    # A retirement that the run before began may be about to delete what would be chosen.
    while context.housekeeper.retires:
        poll(context, error)
    context.writer.settle()
    context.writer.refresh()
    policy = replace(context.settings.restore, mode="Latest", explicit=False)
    settings = replace(context.settings, restore=policy)
    choice = choose(context.store, context.writer.entries, settings, damaged)
    context.reporter.messages(choice.warnings)
    return choice


@contextlib.contextmanager
def _warm(
    settings: JobSettings, options: RunOptions, lineage: str, reporter: Reporter
) -> Iterator[_Warm]:
    """Spark, state servers, and the job's graph; all gone when it ends."""
    environment = options.environment or LocalEnvironment()
    with environment.open(settings, lineage, options, reporter.message) as platform:
        graph = build_graph(
            settings.main_file, stream_environment(settings, platform.spark), settings.py_files
        )
        _tell_unread(graph, reporter)
        reporter.graph(graph_view(graph), outputs_of(graph))
        spare_byte_counts(platform.spark, graph, settings)
        yield _Warm(environment, platform, graph)


@contextlib.contextmanager
def _context(
    settings: JobSettings,
    options: RunOptions,
    writer: LogWriter,
    store: CheckpointStore,
    reporter: Reporter,
    warm: _Warm,
    standby: Standby | None = None,
) -> Iterator[DriverContext]:
    """Ranges of a lineage, and what they take; let go of when it ends."""
    platform = warm.platform
    graph = warm.graph if standby is None else held(warm.graph)
    with contextlib.ExitStack() as stack:
        parallelism, max_parallelism = settings.parallelism, settings.max_parallelism
        uids = [operator.uid for operator in graph.operators]
        fleet = RangeFleet(
            platform.servers,
            uids,
            parallelism,
            max_parallelism,
            settings.checkpoint_dir,
            max_state_size=settings.max_state_size,
        )
        stack.callback(fleet.close)
        kv_states = KvStateLocationRegistry.of(graph)
        if options.lookups is not None:
            kept = not settings.in_one_epoch
            source = LookupSource(fleet, platform.servers, kv_states, settings.key_hash, kept)
            stack.enter_context(options.lookups.serving(source))
        completed = _completed(settings, writer, store, standby)
        keeper = OutputKeeper if standby is None else HeldOutput
        known = KnownSavepoints(writer)
        output = keeper(graph, store, writer, known, known.look_again)
        yield DriverContext(
            settings=settings,
            spark=platform.spark,
            graph=graph,
            planner=EpochPlanner(
                platform.spark,
                graph,
                platform.placement,
                parallelism,
                max_parallelism,
                batch=settings.in_one_epoch,
                key_hash=settings.key_hash,
            ),
            fleet=fleet,
            kv_states=kv_states,
            token=platform.token,
            writer=writer,
            store=store,
            scratch=platform.scratch,
            reporter=reporter,
            stop=options.stop,
            requests=options.requests,
            environment=warm.environment,
            output=output,
            completed=completed,
            directories=tuple(
                one for one in (platform.scratch, platform.state_dir) if one is not None
            ),
            housekeeper=Housekeeper(store.objects, writer, completed, output, settings.retain),
            standby=standby,
            samples=OutputSamples(_sample(options, standby)),
        )


def _sample(options: RunOptions, standby: Standby | None) -> SampleRequest | None:
    """What is told of the output of one that stands by, for as long as it does."""
    return options.orders.sample if standby is not None and options.orders is not None else None


def _completed(
    settings: JobSettings,
    writer: LogWriter,
    store: CheckpointStore,
    standby: Standby | None = None,
) -> CompletedCheckpointStore:
    # What lies in the store of one that stands by is another driver's, and outlives its end.
    retention = settings.retention if standby is None else None
    return CompletedCheckpointStore(writer, store, settings.retain, retention)


def _tell_unread(graph: JobGraph, reporter: Reporter) -> None:
    for uid in graph.unread():
        reporter.message(
            f"nobody reads what this operator yields: operator={uid}; give it a sink with "
            f"sink_to(...), unless its state is all you want"
        )
