"""Whether a job could start, found out beside what runs: it holds, writes and ends nothing.

Decides what is tried: the form of the job, its file, its graph on a Spark of this process's own,
the restore point that a start would choose now, and its functions over the states that are in it.
Called by `moorage preflight`, and by the pod that an operator sends before it stops what runs.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moorage.api.checkpointed import CheckpointedFunction
from moorage.api.functions import RuntimeContext, WorkerContext
from moorage.api.graph import JobGraph, OperatorNode
from moorage.driver.job_file import (
    build_graph,
    check_folders,
    check_job_file,
    stream_environment,
)
from moorage.driver.lineage import seen_lineage
from moorage.driver.manifests import known_schemas
from moorage.driver.rescale import in_force
from moorage.driver.restore_point import (
    Choice,
    adopting,
    already_finished,
    check_fits,
    check_settings,
    choose,
    lay_sources,
)
from moorage.driver.session import end_session, local_session
from moorage.driver.settings import JobSettings
from moorage.driver.types import Orders
from moorage.engine.kept_functions import close
from moorage.engine.task_failures import UserFunctionError
from moorage_api import StatefulSparkJob
from moorage_state.errors import MoorageError
from moorage_state.keyed import KeyedStateStore
from moorage_state.keyed.schema import StateSchema
from moorage_state.snapshots import CheckpointStore

__all__ = ["Preflight", "preflight"]


@dataclass(frozen=True, slots=True)
class Preflight:
    """What a job would start with.

    Attributes:
        operators: uids of its stateful operators.
        restore: the restore point, as the log names it; None if there is nothing to restore.
        epoch: the last epoch that is in it.
        unclaimed: uids that the restore point has state of, and the job no operator; only where
            restore.allowNonRestoredState lets them be left behind.
        finished: its input was used up before: a start runs nothing.
        warnings: what a person should know.
    """

    operators: tuple[str, ...]
    restore: str | None
    epoch: int
    unclaimed: tuple[str, ...]
    warnings: tuple[str, ...]
    finished: bool = False

    @property
    def text(self) -> str:
        """One line for people."""
        if self.finished:
            return "its input is used up: a start finds that it has finished, and runs nothing"
        begins = f"begins from {self.restore}" if self.restore else "begins with nothing"
        dropped = f", drops state of {', '.join(self.unclaimed)}" if self.unclaimed else ""
        return f"{len(self.operators)} stateful operators, {begins} (epoch {self.epoch}){dropped}"


def preflight(
    job: StatefulSparkJob, job_dir: Path, restore: str | None = None, orders: Orders | None = None
) -> Preflight:
    """Try all that a start of `job` tries before it takes hold of anything.

    Args:
        job_dir: where its manifest lies.
        restore: as for `run`.
        orders: an operator's.

    Raises:
        UserError: what is wrong, and what to do; UserFunctionError where the job's code is.
        CorruptState: the restore point is damaged.
        StoreUnavailable: the store does not answer.
    """
    settings = JobSettings.of(job, job_dir, restore, orders)
    check_job_file(settings.main_file)
    warnings = check_folders(settings.main_file, settings.py_files)
    store, entries = seen_lineage(settings)
    choice = choose(store, entries, settings)
    epoch = choice.manifest.epoch if choice.manifest is not None else 0
    if already_finished(choice, settings):
        return Preflight((), choice.path, epoch, (), (*warnings, *choice.warnings), finished=True)
    settings = in_force(adopting(settings, choice.manifest), entries)
    if choice.manifest is not None:
        check_settings(choice.manifest, settings)
    graph = _graph(settings, choice, store)
    schemas = known_schemas(choice.manifest) if choice.manifest is not None else {}
    for operator in graph.operators:
        _open(operator, schemas.get(operator.uid, ()), settings.parallelism)
    stored = choice.manifest.operators if choice.manifest is not None else {}
    uids = tuple(operator.uid for operator in graph.operators)
    return Preflight(
        operators=uids,
        restore=choice.path,
        epoch=epoch,
        unclaimed=tuple(sorted(stored.keys() - set(uids))),
        warnings=(*warnings, *choice.warnings),
    )


def _open(operator: OperatorNode, known: tuple[StateSchema, ...], parallelism: int) -> None:
    """Open a function over what is known of its state; no state is there to be read.

    One with state of its subtasks goes by what it takes up there, and is not opened.
    """
    function = operator.function
    if isinstance(function, CheckpointedFunction):
        return
    nothing: Any = None
    store = KeyedStateStore(nothing, 1, known)
    context = RuntimeContext(store, operator.uid, 0, parallelism)
    try:
        if function.long_lived:
            worker: Any = WorkerContext(operator.uid, parallelism)
            function.open(worker)
        else:
            function.open(context)
        function.open_epoch(context)
    except MoorageError:
        raise
    except Exception as error:
        raise UserFunctionError(
            f"open of a function failed: operator={operator.uid}: {type(error).__name__}: {error}"
        ) from error
    finally:
        close(function, operator.uid)


def _graph(settings: JobSettings, choice: Choice, store: CheckpointStore) -> JobGraph:
    """The graph, which fits the restore point.

    It is built on a Spark with one thread: what is read of a source is its schema.
    """
    with tempfile.TemporaryDirectory(prefix="moorage-preflight-") as scratch:
        spark = local_session(settings, 1, Path(scratch))
        try:
            env = stream_environment(settings, spark)
            graph = build_graph(settings.main_file, env, settings.py_files)
        finally:
            end_session(spark)
        if choice.manifest is not None:
            check_fits(choice.manifest, graph, settings)
            uids = [node.uid for node in graph.inputs]
            lay_sources(choice, store.objects, Path(scratch) / "sources", uids, settings)
    return graph
