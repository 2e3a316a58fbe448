"""Sinks seen from the driver: what they go back to, and what they may forget.

Decides which output each sink restores and keeps, from the lineage's log and the manifests that
can still be restored. Called before anything begins, by a run when it starts, after each epoch, and
after each completed checkpoint. Knows nothing of how a sink stores things.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile

from moorage.api.graph import JobGraph, SinkNode
from moorage.api.sinks import (
    Committable,
    EpochInfo,
    LiveOutput,
    SinkOrigin,
    SinkRestore,
    SinkRetire,
)
from moorage.driver.refusals import RestorePointIncompatible
from moorage.driver.restore_point import Choice
from moorage.engine.task_failures import UserFunctionError
from moorage.sinks.file_names import OutputConflict
from moorage_state.errors import CorruptState, StoreUnavailable, UserError
from moorage_state.snapshots import (
    Checkpoint,
    CheckpointStore,
    Entry,
    Line,
    LogWriter,
    Manifest,
    Run,
    SnapshotRoot,
    ancestors,
    checkpoint_id_of,
    checkpoint_path,
    is_announced,
    retained,
    run_token,
)

_log = logging.getLogger(__name__)

_Committables = Mapping[str, list[Committable]]

_LOOKS = 3
"""At restore points that were gone by the time that it was looked for their output."""

_QUIET_SECONDS = 5.0
"""A wait that is longer is told of."""


class OutputKeeper:
    """The sinks of a job, in one run or several.

    Args:
        savepoints: the manifests of the savepoints that are known; what they cover is kept.
    """

    def __init__(
        self,
        graph: JobGraph,
        store: CheckpointStore,
        writer: LogWriter,
        savepoints: Callable[[], Sequence[Manifest]] = tuple,
    ) -> None:
        self._graph = graph
        self._store = store
        self._writer = writer
        self._savepoints = savepoints
        self._known: dict[int, _Committables] = {}
        # What a sink publishes or restores must not look like what it may forget, nor be read while
        # that goes: a chore of the run before may still be at work when the next one begins.
        self._one_at_a_time = threading.Lock()

    def admit(self, manifest: SnapshotRoot | None) -> list[str]:
        """Ask all sinks whether the run may begin with this point; returns sentences for people.

        Raises:
            UserError: the run must not begin; names every sink that says so.
            CorruptState: output that the point covers is missing.
        """
        lineage = self._writer.lineage
        if manifest is not None and manifest.lineage == lineage:
            check_sinks(self._graph, manifest, lineage)
            return []  # its own state goes on with its own output
        origin = None
        if manifest is not None:
            run = run_token(manifest.fence, manifest.run)
            origin = SinkOrigin(manifest.lineage, run, manifest.epoch)
        told: list[str] = []
        refused: dict[str, UserError] = {}
        for node in self._graph.sinks:
            try:
                call = getattr(node.sink, "admit", None)
                told += call(lineage, origin) if call is not None else ()
            except UserError as error:
                refused[node.uid] = error
        if refused:
            raise _refusal(refused)
        return told

    def restore(self, run: int, manifest: SnapshotRoot | None) -> Iterator[str]:
        """Take all sinks to the restored point; yields sentences for people.

        Raises:
            Fenced: another driver took over; no sink was touched.
            UserFunctionError: a function that is called with output raised.
        """
        while not self._one_at_a_time.acquire(timeout=_QUIET_SECONDS):
            # Again and again: who is told may be about to stop, and a store may hang.
            yield "waiting until the sinks of the run before have deleted what they may forget"
        try:
            yield from self._restore(run, manifest)
        finally:
            self._one_at_a_time.release()

    def _restore(self, run: int, manifest: SnapshotRoot | None) -> Iterator[str]:
        lineage, entries = self._writer.lineage, self._writer.entries
        staged: _Committables = {}
        history: Sequence[int] = ()
        if manifest is not None and manifest.lineage == lineage:
            staged, history = manifest.sinks, history_of(entries, manifest)
        elif manifest is not None and any(manifest.sinks.values()):
            rows = {uid: _rows(items) for uid, items in manifest.sinks.items() if items}
            yield (
                f"output that the restore point covers and another lineage staged is dropped, for "
                f"that lineage publishes it: lineage={manifest.lineage} rows={rows}"
            )
        live = self._live(entries)
        behind = left_behind(entries, history)
        for node in self._graph.sinks:
            # Checked for each: publishing one sink's output may take long.
            self._writer.refresh()
            point = SinkRestore(
                lineage=lineage,
                run=run_token(self._writer.fence, run),
                history=history,
                committables=list(staged.get(node.uid, [])),
                live=None if live is None else _outputs(live, node.uid),
                left_behind=behind,
            )
            try:
                yield from node.sink.restore(point)
            except UserError as error:
                raise _of_function(error) from error
        yield from self._without_sink(staged)

    def commit_epoch(self, run: int, epoch: int, committables: _Committables) -> None:
        """Tell the sinks that want to know that an epoch is committed.

        Raises UserError: a function that is called with output raised.
        """
        info = EpochInfo(self._writer.lineage, run_token(self._writer.fence, run), epoch)
        for node in self._graph.sinks:
            call = getattr(node.sink, "commit_epoch", None)
            if call is not None and committables.get(node.uid):
                call(info, committables[node.uid])

    def publish(self, checkpoint_id: int, committables: _Committables) -> None:
        """Make visible what a completed checkpoint covers; called beside the epochs."""
        with self._one_at_a_time:
            self._publish(checkpoint_id, committables)

    def _publish(self, checkpoint_id: int, committables: _Committables) -> None:
        for uid, items in committables.items():
            self._node(uid).sink.publish(self._writer.lineage, checkpoint_id, items)

    def retire(self, run: int, checkpoint_id: int, epoch: int) -> None:
        """Let sinks forget what no restore can ask for; not while a manifest is unreadable.

        Called beside the epochs.
        """
        with self._one_at_a_time:
            self._retire(run, checkpoint_id, epoch)

    def _retire(self, run: int, checkpoint_id: int, epoch: int) -> None:
        nodes = [n for n in self._graph.sinks if hasattr(n.sink, "retire")]
        live = self._live(self._writer.entries) if nodes else None
        if live is None:
            return
        for node in nodes:
            retire = getattr(node.sink, "retire", None)
            if retire is not None:
                token = run_token(self._writer.fence, run)
                outputs = _outputs(live, node.uid)
                retire(SinkRetire(self._writer.lineage, token, epoch, checkpoint_id, outputs))

    def _node(self, uid: str) -> SinkNode:
        return next(node for node in self._graph.sinks if node.uid == uid)

    def _without_sink(self, staged: _Committables) -> Iterator[str]:
        uids = {node.uid for node in self._graph.sinks}
        for uid, items in staged.items():
            if items and uid not in uids:
                yield (
                    f"the restore point covers output of a sink that the job no longer has; it "
                    f"stays unpublished unless it was published already: uid={uid} "
                    f"rows={_rows(items)}"
                )

    def _live(self, entries: Sequence[Entry]) -> list[tuple[Sequence[int], _Committables]] | None:
        """What all retained checkpoints and savepoints cover; None when that cannot be known."""
        existing = retained(entries)
        for gone in self._known.keys() - {c.checkpoint_id for c in existing}:
            del self._known[gone]
        try:
            for checkpoint in existing:
                if checkpoint.checkpoint_id not in self._known:
                    sinks = self._store.load_root(checkpoint).sinks
                    self._known[checkpoint.checkpoint_id] = sinks
            own = [m for m in self._savepoints() if m.lineage == self._writer.lineage]
        except (CorruptState, StoreUnavailable) as error:
            _log.warning("no output is forgotten while a manifest cannot be read: %s", error)
            return None
        ids = [c.checkpoint_id for c in existing]
        return [
            *((ancestors(entries, i), self._known[i]) for i in ids),
            *((history_of(entries, manifest), manifest.sinks) for manifest in own),
        ]


class HeldOutput(OutputKeeper):
    """That of a driver which stands by: its sinks drop what they get."""

    def restore(self, run: int, manifest: SnapshotRoot | None) -> Iterator[str]:
        """There is no output to be taken back, and none to be published again."""
        del run, manifest
        return iter(())


def check_sinks(graph: JobGraph, manifest: SnapshotRoot, lineage: str) -> None:
    """Refuse a point whose output a sink cannot publish; nothing is changed by that.

    Output of another lineage is published by that one.

    Raises:
        RestorePointIncompatible: a sink of another kind staged it.
        CorruptState: it is not there.
    """
    if manifest.lineage != lineage:
        return
    for node in graph.sinks:
        call = getattr(node.sink, "check_covered", None)
        if call is None:
            continue
        try:
            call(lineage, list(manifest.sinks.get(node.uid, [])))
        except UserError as error:
            text = f"a sink cannot publish what the restore point covers: sink={node.uid}: {error}"
            raise RestorePointIncompatible(text) from error
        except CorruptState as error:
            text = f"{error.message}: sink={node.uid}"
            raise CorruptState(text, error.path, error.advice) from error


def check_sinks_beside(
    graph: JobGraph, lineage: str, choice: Choice, again: Callable[[], Choice]
) -> None:
    """As `check_sinks`, beside a driver that lets go of what it has no more use for.

    Args:
        again: chooses anew.
    """
    for more in reversed(range(_LOOKS + 1)):
        try:
            if choice.manifest is not None:
                check_sinks(graph, choice.manifest, lineage)
        except (RestorePointIncompatible, CorruptState):
            if not more or (newer := again()).path == choice.path:
                raise
            choice = newer
        else:
            return


def history_of(entries: Sequence[Entry], manifest: SnapshotRoot) -> Line:
    """The checkpoints that a point descends from, oldest first, its own id last."""
    if manifest.kind == "checkpoint" or is_announced(entries, manifest.checkpoint_id):
        return ancestors(entries, manifest.checkpoint_id)
    # One that the log does not know: it follows what its run completed before, or started from.
    parent: int | None = None
    for entry in entries:
        match entry:
            case Run(fence=manifest.fence, run=manifest.run):
                parent = checkpoint_id_of(entry.restored_from or "")
            case Checkpoint(fence=manifest.fence, run=manifest.run):
                if entry.epoch <= manifest.epoch and entry.checkpoint_id < manifest.checkpoint_id:
                    parent = entry.checkpoint_id
    before = ancestors(entries, parent) if parent is not None else Line()
    return before.then(manifest.checkpoint_id)


def left_behind(entries: Sequence[Entry], history: Sequence[int]) -> tuple[int, ...]:
    """The checkpoints that the run before the newest one had and `history` has not."""
    tips: list[str | None] = [None]
    for entry in entries:
        match entry:
            case Run():
                tips.append(entry.restored_from)
            case Checkpoint():
                tips[-1] = checkpoint_path(entry.checkpoint_id)
    before = checkpoint_id_of(tips[-2] or "") if len(tips) > 1 else None
    line = ancestors(entries, before) if before is not None else Line()
    # Two lines have in common what comes before they part.
    behind = list(takewhile(lambda i: i not in history, reversed(line)))
    return tuple(reversed(behind))


def _outputs(
    live: Sequence[tuple[Sequence[int], _Committables]], uid: str
) -> tuple[LiveOutput, ...]:
    return tuple(LiveOutput(history, list(sinks.get(uid, []))) for history, sinks in live)


def _refusal(refused: Mapping[str, UserError]) -> UserError:
    """One error for all sinks, so that a person mends all of them before the next start."""
    first, *more = refused.values()
    if not more:
        return first
    each = "; ".join(f"sink={uid}: {error}" for uid, error in refused.items())
    # Never the type of one of them: a sink's own error may be made of something else than a text.
    conflict = any(isinstance(error, OutputConflict) for error in refused.values())
    kind = OutputConflict if conflict else UserError
    return kind(f"sinks refuse to begin here: sinks={sorted(refused)}; {each}")


def _of_function(error: UserError) -> UserError:
    """What the job's function did is the job's failure, not the manifest's."""
    return UserFunctionError(*error.args) if type(error) is UserError else error


def _rows(items: Sequence[Committable]) -> int:
    return sum(int(item.get("rows", 0)) for item in items)
