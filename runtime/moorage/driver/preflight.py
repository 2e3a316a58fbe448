"""Whether a job could start, found out beside what runs: it holds, writes and ends nothing.

Decides what is tried: the form of the job, its file, its graph on a Spark of this process's own,
the restore point that a start would choose now, its functions over the states that are in it, and
its sinks over the output. Called by `moorage preflight`, and by the pod that an operator sends
before it stops what runs.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from moorage.api.checkpointed import CheckpointedFunction, FunctionInitializationContext
from moorage.api.functions import RuntimeContext, WorkerContext
from moorage.api.graph import JobGraph, OperatorNode
from moorage.driver.job_file import (
    build_graph,
    check_folders,
    check_job_file,
    stream_environment,
)
from moorage.driver.lineage import seen_lineage
from moorage.driver.manifests import known_schemas, operator_schemas
from moorage.driver.output import check_sinks_beside
from moorage.driver.refusals import RestorePointCorrupt
from moorage.driver.rescale import in_force
from moorage.driver.restore_point import (
    Choice,
    adopting,
    already_finished,
    check_fits,
    check_settings,
    choose,
    lay_sources,
    objects_seen,
)
from moorage.driver.session import end_session, local_session
from moorage.driver.settings import JobSettings
from moorage.driver.types import Orders
from moorage.engine.kept_functions import close
from moorage.engine.task_failures import UserFunctionError
from moorage_api import StatefulSparkJob
from moorage_state.errors import CorruptState, MoorageError
from moorage_state.keyed import KeyedStateStore
from moorage_state.keyed.schema import StateSchema
from moorage_state.operator_state import (
    KeyGroupStatePartitionStreamProvider,
    OperatorStateSchema,
    OperatorStateStore,
    StatePartitionStreamProvider,
)
from moorage_state.snapshots import CheckpointStore, SnapshotRoot, current_owner

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
        objects: how many the restore point consists of beside its manifest.
        unseen: how many of them were not looked at, for want of time.
    """

    operators: tuple[str, ...]
    restore: str | None
    epoch: int
    unclaimed: tuple[str, ...]
    warnings: tuple[str, ...]
    finished: bool = False
    objects: int = 0
    unseen: int = 0

    @property
    def text(self) -> str:
        """One line for people."""
        if self.finished:
            return "its input is used up: a start finds that it has finished, and runs nothing"
        begins = f"begins from {self.restore}" if self.restore else "begins with nothing"
        dropped = f", drops state of {', '.join(self.unclaimed)}" if self.unclaimed else ""
        operators = f"{len(self.operators)} stateful operators"
        return f"{operators}, {begins} (epoch {self.epoch}){self._seen}{dropped}"

    @property
    def _seen(self) -> str:
        if not self.objects:
            return ""
        if not self.unseen:
            return f", of whose objects none is missing ({self.objects})"
        seen = self.objects - self.unseen
        return f", of whose {self.objects} objects {seen} were looked at in {_LOOK_SECONDS:.0f} s"


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
        CorruptState: the restore point is damaged, or lacks an object; also where a start would
            take an older one in its place.
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
    if (owner := current_owner(entries)) is not None:
        # What runs meanwhile may have completed others, and let this one go.
        check_sinks_beside(
            graph,
            owner.lineage,
            entries,
            choice,
            lambda: choose(*seen_lineage(settings), settings),
        )
    read_on = [
        operator.uid
        for operator in graph.operators
        if not open_over(operator, _known(choice.manifest, operator.uid), settings.parallelism)
    ]
    if read_on:
        warnings = [*warnings, _NOT_ALL.format(", ".join(read_on))]
    stored = choice.manifest.operators if choice.manifest is not None else {}
    uids = tuple(operator.uid for operator in graph.operators)
    seen, objects = seen_whole(settings)
    return Preflight(
        operators=uids,
        restore=choice.path,
        epoch=epoch,
        unclaimed=tuple(sorted(stored.keys() - set(uids))),
        warnings=(*warnings, *choice.warnings),
        objects=objects,
        unseen=objects - seen,
    )


_LOOK_SECONDS = 60.0
"""How long objects of the restore point are looked at; some 20,000 of a store that takes 50 ms."""

_DAMAGED = (
    "a driver that runs has the state itself: take a savepoint of it and restore that; else a "
    "start goes back to an older checkpoint, if restore.maxFallbackAge lets it"
)


def seen_whole(
    settings: JobSettings, clock: Callable[[], float] = time.monotonic
) -> tuple[int, int]:
    """How many objects of the restore point were looked at, and how many it has.

    Raises:
        CorruptState: one is missing or has another size, or the manifest is damaged.
    """
    until = clock() + _LOOK_SECONDS
    strict = replace(settings, restore=replace(settings.restore, max_fallback_age=None))
    missed: set[str] = set()
    while True:
        store, entries = seen_lineage(strict)
        try:
            choice = choose(store, entries, strict)
            return objects_seen(choice, store.objects, lambda: clock() >= until)
        except CorruptState as error:
            # What runs meanwhile may have completed another one, and let this one go: once more.
            if error.path in missed:
                raise RestorePointCorrupt(error.message, error.path, _DAMAGED) from error
            missed.add(error.path)


_NOT_ALL = (
    "operators read state of their subtasks before they have declared all of it, and no values are "
    "read here, so what they do after that was not tried: {}"
)


@dataclass(frozen=True, slots=True)
class KnownStates:
    """What a restore point lists of an operator; `checkpoint_id` None where it has nothing."""

    keyed: tuple[StateSchema, ...] = ()
    of_subtasks: tuple[OperatorStateSchema, ...] = ()
    checkpoint_id: int | None = None


class _Looked(BaseException):
    """A function looks at values, which are not read. No `except Exception` of its own hides it."""


class _Declarations(OperatorStateStore):
    """Operator states that are declared over what was written before, and not read."""

    def __init__(self, known: KnownStates) -> None:
        super().__init__(known.of_subtasks)
        self._is_restored = known.checkpoint_id is not None

    def _load_list(self, schema: OperatorStateSchema) -> list[bytes]:
        del schema
        self.look()
        return []

    def _load_map(self, schema: OperatorStateSchema) -> dict[bytes, bytes]:
        del schema
        self.look()
        return {}

    def look(self) -> None:
        """Where there is nothing from before, there are no values to be read either."""
        if self._is_restored:
            raise _Looked


class _RawDeclarations:
    """Raw streams, likewise."""

    def __init__(self, states: _Declarations) -> None:
        self._states = states

    def keyed_inputs(self) -> Iterator[KeyGroupStatePartitionStreamProvider]:
        self._states.look()
        return iter(())

    def operator_inputs(self) -> list[StatePartitionStreamProvider]:
        self._states.look()
        return []


def _known(manifest: SnapshotRoot | None, uid: str) -> KnownStates:
    state = manifest.operators.get(uid) if manifest is not None else None
    if manifest is None or state is None:
        return KnownStates()
    keyed = known_schemas(manifest).get(uid, ())
    return KnownStates(keyed, operator_schemas(state), manifest.checkpoint_id)


def open_over(operator: OperatorNode, known: KnownStates, parallelism: int) -> bool:
    """Open a function over what is known of its states; no values are there to be read.

    Returns:
        Whether all of it was tried: one that reads state of its subtasks ends there.

    Raises:
        UserError: it declares a state that what was written cannot be read as; `UserFunctionError`
            where it raises by itself.
    """
    function = operator.function
    nothing: Any = None
    store = KeyedStateStore(nothing, 1, known.keyed)
    context = RuntimeContext(store, operator.uid, 0, parallelism)
    states = _Declarations(known)
    try:
        if operator.broadcast is not None:
            for descriptor in operator.broadcast.descriptors:
                states.get_broadcast_state(descriptor)
        if isinstance(function, CheckpointedFunction):
            raw: Any = _RawDeclarations(states)
            restored = known.checkpoint_id is not None
            function.initialize_state(
                FunctionInitializationContext(restored, known.checkpoint_id, states, context, raw)
            )
        if function.long_lived:
            worker: Any = WorkerContext(operator.uid, parallelism)
            function.open(worker)
        else:
            function.open(context)
        function.open_epoch(context)
    except _Looked:
        return False
    except MoorageError:
        raise
    except Exception as error:
        raise UserFunctionError(
            f"open of a function failed: operator={operator.uid}: {type(error).__name__}: {error}"
        ) from error
    finally:
        close(function, operator.uid)
    return True


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
