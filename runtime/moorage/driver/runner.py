"""`run_job`: one job on this machine, from its manifest to its end.

Decides the order in which a job takes hold of things (lock, fence, restore point, Spark, servers)
and lets go of them, and what a failure means: rewind to the last checkpoint, or end. Called by the
command line and by tests; a cluster's entry point will call it too.
"""

import contextlib
import datetime
import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from moorage.driver.control import ControlServer, control_path
from moorage.driver.directories import make_last_part
from moorage.driver.job_file import build_graph
from moorage.driver.local import LocalServers, Scratch
from moorage.driver.reporter import Reporter, view_of
from moorage.driver.restore import Choice, check_fits, choose
from moorage.driver.session import local_session
from moorage.driver.settings import JobSettings
from moorage.driver.stream_run import DriverContext, StreamRun
from moorage.driver.types import Outcome, Progress, RunOptions, RunResult, StoreRefused
from moorage.engine.failures import UserFunctionError
from moorage.engine.fleet import RangeFleet
from moorage.engine.placement import LocalPlacement
from moorage.engine.plan import EpochPlanner
from moorage.graph import StreamEnvironment
from moorage_api import StatefulSparkJob
from moorage_state.errors import (
    CorruptState,
    Retryable,
    StaleLease,
    UserError,
    VersionGone,
    VersionMismatch,
)
from moorage_state.server.group import ServerGroup
from moorage_state.snapshots import (
    CheckpointStore,
    LockHolder,
    LogWriter,
    Owner,
    Verify,
    acquire_lock,
)
from moorage_state.stores import open_store

__all__ = ["run_job"]

_REWIND = (VersionGone, VersionMismatch, StaleLease, Retryable)
_MAX_REWINDS = 3


def run_job(
    job: StatefulSparkJob,
    job_dir: Path,
    options: RunOptions,
    listener: Callable[[Progress], None],
) -> RunResult:
    """Run `job`, whose manifest lies in `job_dir`, until its input ends or it is told to stop.

    Raises:
        StoreRefused: the checkpoint directory is missing, unreadable, held or owned by another.
        CorruptState: the restore point is damaged and nothing may take its place.
        Fenced: another driver took over; nothing was committed since.
        UserError: the job file, its function, or what it asks for is wrong.
        LocalDiskError: the local volume is full; what is committed is in the last checkpoint.
    """
    started = time.monotonic()
    settings = JobSettings.of(job, job_dir, options.restore)
    reporter = Reporter(listener)
    with contextlib.ExitStack() as stack:
        stack.callback(options.requests.close, f"the job has ended: job={settings.name}")
        writer, store = stack.enter_context(_lineage(settings, options, reporter))
        choice = choose(store, writer.entries, settings)
        for sentence in choice.warnings:
            reporter.message(sentence)
        if choice.manifest is None:
            reporter.message(f"starting empty: no checkpoint yet in {settings.checkpoint_dir}")
        if finished := _already_finished(choice, settings):
            reporter.phase(
                "finished",
                f"the job has finished already, with {choice.path}: nothing is left to do; to run "
                f"it again name another checkpointDir, or go back with --restore chk-<id>",
            )
            return replace(finished, seconds=time.monotonic() - started)
        if options.control:
            try:
                path = control_path(settings.checkpoint_dir)
                stack.enter_context(ControlServer(path, options.requests))
            except (OSError, UserError) as error:
                reporter.message(f"savepoints cannot be asked for: {error}")
        context = stack.enter_context(_context(settings, options, writer, store, reporter))
        outcome, run = _drive(context, choice)
    last = run.checkpointer.last
    return RunResult(
        outcome=outcome,
        epoch=reporter.progress.epoch,
        rows_total=reporter.progress.rows_total,
        seconds=time.monotonic() - started,
        last_checkpoint=view_of(last) if last else reporter.progress.last_checkpoint,
        restored_from=choice.path,
    )


def _drive(context: DriverContext, choice: Choice) -> tuple[Outcome, StreamRun]:
    """Run after run until one ends well: a run that loses its local state is followed by another.

    Rewinds that come without a checkpoint in between are counted and end the job. A checkpoint
    whose files turn out to be damaged is replaced by an older one where the job allows that.
    """
    rewinds = 0
    number = 0
    while True:
        if choice.manifest is not None:
            check_fits(choice.manifest, context.graph, context.settings)
        run: StreamRun | None = None
        try:
            run = StreamRun(context, number, choice)
            return _drive_run(run), run
        except CorruptState as error:
            if run is not None or choice.explicit:
                raise
            context.reporter.message(str(error))
            other = _choose_again(context, "hashes")
            if other.path == choice.path:
                raise
            choice = other
        except _REWIND as error:
            rewinds = 1 if run is not None and run.checkpointer.last else rewinds + 1
            if rewinds > _MAX_REWINDS:
                raise
            context.reporter.phase("rewinding", f"going back to the last checkpoint: {error}")
            if run is not None:  # else the choice was not followed yet: the same once more
                choice = _choose_again(context, "sizes")
        number += 1


def _drive_run(run: StreamRun) -> Outcome:
    """What was wrong with rows is the job's failure, not the manifest's."""
    try:
        return run.drive()
    except UserError as error:
        if type(error) is UserError:
            raise UserFunctionError(*error.args) from error
        raise


def _choose_again(context: DriverContext, verify: Verify) -> Choice:
    """The restore point of the next run; what a person chose was followed already."""
    context.writer.settle()
    context.writer.refresh()
    policy = replace(context.settings.restore, mode="Latest", explicit=False)
    settings = replace(context.settings, restore=policy)
    choice = choose(context.store, context.writer.entries, settings, verify)
    for sentence in choice.warnings:
        context.reporter.message(sentence)
    return choice


@contextlib.contextmanager
def _lineage(
    settings: JobSettings, options: RunOptions, reporter: Reporter
) -> Iterator[tuple[LogWriter, CheckpointStore]]:
    """Hold the checkpoint directory's lock and fence."""
    with _lock(settings, options, reporter):
        writer, store = _claim(settings)
        yield writer, store


def _claim(settings: JobSettings) -> tuple[LogWriter, CheckpointStore]:
    try:
        objects = open_store(settings.checkpoint_dir)
        owner = Owner(settings.cluster, settings.namespace, settings.name, settings.uid)
        writer = LogWriter.claim(objects, owner, f"{socket.gethostname()}:{os.getpid()}")
    except UserError as error:
        raise StoreRefused(*error.args) from error
    return writer, CheckpointStore(objects)


def _lock(
    settings: JobSettings, options: RunOptions, reporter: Reporter
) -> contextlib.AbstractContextManager[object]:
    """The lock on the checkpoint directory; on a file system its last part is made."""
    make_last_part("state.checkpointDir", settings.checkpoint_dir)
    holder = LockHolder.current(settings.name, datetime.datetime.now(datetime.UTC))
    try:
        store = open_store(settings.checkpoint_dir)
        return acquire_lock(store, holder, take_over=options.take_over, watching=reporter.message)
    except UserError as error:
        raise StoreRefused(*error.args) from error


@contextlib.contextmanager
def _context(
    settings: JobSettings,
    options: RunOptions,
    writer: LogWriter,
    store: CheckpointStore,
    reporter: Reporter,
) -> Iterator[DriverContext]:
    """Spark, the job's graph, and state servers; all gone when it ends."""
    cores = options.cores or min(settings.parallelism, os.cpu_count() or 1)
    scratch = Scratch(settings.checkpoint_dir, options.local_dir)
    with contextlib.ExitStack() as stack:
        stack.callback(scratch.remove)
        group = ServerGroup(
            min(settings.parallelism, cores), scratch.path / "state", socket_dir=scratch.sockets
        )
        servers = LocalServers(group)
        stack.callback(servers.close)
        spark = local_session(settings, cores, scratch.path)
        stack.callback(spark.stop)
        env = StreamEnvironment(
            spark,
            base_dir=str(settings.main_file.parent),
            staging=settings.checkpoint_dir,
            max_records_per_epoch=settings.max_records_per_epoch,
            args=settings.args,
        )
        graph = build_graph(settings.main_file, env, settings.py_files)
        fleet = RangeFleet(
            servers,
            [o.uid for o in graph.operators],
            settings.parallelism,
            settings.max_parallelism,
            settings.checkpoint_dir,
        )
        stack.callback(fleet.close)
        planner = EpochPlanner(
            spark, graph, LocalPlacement(), settings.parallelism, settings.max_parallelism
        )
        yield DriverContext(
            settings=settings,
            spark=spark,
            graph=graph,
            planner=planner,
            fleet=fleet,
            token=servers.token,
            writer=writer,
            store=store,
            scratch=scratch.path,
            reporter=reporter,
            stop=options.stop,
            requests=options.requests,
        )


def _already_finished(choice: Choice, settings: JobSettings) -> RunResult | None:
    """A bounded job that has finished stays so; there is nothing to run."""
    manifest = choice.manifest
    if manifest is None or choice.explicit or choice.address or not manifest.extra.get("finished"):
        return None
    if not settings.bounded:
        return None
    return RunResult(
        outcome=Outcome.FINISHED,
        epoch=manifest.epoch,
        rows_total=0,
        seconds=0.0,
        restored_from=choice.path,
    )
