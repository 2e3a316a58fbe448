"""Sinks seen from the driver: what they go back to, and what they may forget.

Decides which output each sink restores and keeps, from the lineage's log and the manifests that
can still be restored. Called before anything begins, by a run when it starts, after each epoch, and
after each completed checkpoint. Knows nothing of how a sink stores things.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile

from py4j.protocol import Py4JError

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
from moorage.engine.task_failures import RunRefused, failure_of
from moorage.sinks.file_names import OutputConflict
from moorage_state.errors import (
    CorruptState,
    MoorageError,
    NewerFormat,
    StoreDenied,
    StoreUnavailable,
    UserError,
)
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
    is_followed,
    is_known,
    lines_of,
    retained,
    run_token,
)

_log = logging.getLogger(__name__)

_Committables = Mapping[str, list[Committable]]

_LOOKS = 3
"""At restore points that were gone by the time that it was looked for their output."""

_QUIET_SECONDS = 5.0
"""A wait that is longer is told of."""


@dataclass(frozen=True, slots=True)
class PendingSavepoint:
    """What a savepoint will cover that is under way, by sinks: no manifest tells of it yet."""

    fence: int
    run: int
    checkpoint_id: int
    epoch: int
    sinks: _Committables


class OutputKeeper:
    """The sinks of a job, in one run or several.

    Args:
        savepoints: the manifests of the savepoints that are known; what they cover is kept.
        look_again: called before anything is forgotten, to find out which of them are gone.
    """

    def __init__(
        self,
        graph: JobGraph,
        store: CheckpointStore,
        writer: LogWriter,
        savepoints: Callable[[], Sequence[Manifest]] = tuple,
        look_again: Callable[[], None] = lambda: None,
    ) -> None:
        self._graph = graph
        self._store = store
        self._writer = writer
        self._savepoints = savepoints
        self._look_again = look_again
        self._known: dict[int, _Committables] = {}
        self._lines: dict[int, Line] = {}
        # Why nothing is forgotten, and what of that people were told already.
        self._hindered = self._told = ""
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
            check_sinks(self._graph, manifest, lineage, self._writer.entries)
            self._history(manifest)
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
            RunRefused: a sink, or a function that is called with output, raised.
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
            staged, history = _held(self._graph, manifest, entries), self._history(manifest)
        elif manifest is not None and any(manifest.sinks.values()):
            rows = {uid: _rows(items) for uid, items in manifest.sinks.items() if items}
            yield (
                f"output that the restore point covers and another lineage staged is dropped, for "
                f"that lineage publishes it: lineage={manifest.lineage} rows={rows}"
            )
        live = self._live(entries)
        if self._graph.sinks and self._hindered not in {"", self._told}:
            self._told = self._hindered
            yield self._hindered
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
                with _in_sink(
                    node.uid, "restore", f"checkpoint={history[-1] if history else None}"
                ):
                    yield from node.sink.restore(point)
            except UserError as error:
                raise _of_the_run(error) from error
        yield from self._without_sink(staged)

    def commit_epoch(self, run: int, epoch: int, committables: _Committables) -> None:
        """Tell the sinks that want to know that an epoch is committed.

        Raises UserError: a sink, or a function that is called with output, raised.
        """
        info = EpochInfo(self._writer.lineage, run_token(self._writer.fence, run), epoch)
        for node in self._graph.sinks:
            call = getattr(node.sink, "commit_epoch", None)
            if call is not None and committables.get(node.uid):
                with _in_sink(node.uid, "commit_epoch", f"run={info.run} epoch={epoch}"):
                    call(info, committables[node.uid])

    def publish(self, checkpoint_id: int, committables: _Committables) -> None:
        """Make visible what a completed checkpoint covers; called beside the epochs.

        Raises UserError: a sink, or a function that is called with output, raised.
        """
        with self._one_at_a_time:
            self._publish(checkpoint_id, committables)

    def _publish(self, checkpoint_id: int, committables: _Committables) -> None:
        for uid, items in committables.items():
            with _in_sink(uid, "publish", f"checkpoint={checkpoint_id}"):
                self._node(uid).sink.publish(self._writer.lineage, checkpoint_id, items)

    def retire(
        self,
        run: int,
        checkpoint_id: int,
        epoch: int,
        pending: Sequence[PendingSavepoint] = (),
    ) -> None:
        """Let sinks forget what no restore can ask for; not while a manifest is unreadable.

        Called beside the epochs.

        Args:
            pending: the savepoints that were under way when the checkpoint completed.
        """
        nodes = [n for n in self._graph.sinks if hasattr(n.sink, "retire")]
        if not nodes:
            return
        # Before it is anybody's turn: their stores may not answer for long.
        self._look_again()
        with self._one_at_a_time:
            self._retire(nodes, run, checkpoint_id, epoch, pending)

    def _retire(
        self,
        nodes: Sequence[SinkNode],
        run: int,
        checkpoint_id: int,
        epoch: int,
        pending: Sequence[PendingSavepoint],
    ) -> None:
        live = self._live(self._writer.entries, pending)
        if live is None:
            return
        for node in nodes:
            retire = getattr(node.sink, "retire", None)
            if retire is not None:
                token = run_token(self._writer.fence, run)
                outputs = _outputs(live, node.uid)
                with _in_sink(node.uid, "retire", f"checkpoint={checkpoint_id}"):
                    retire(SinkRetire(self._writer.lineage, token, epoch, checkpoint_id, outputs))

    def _node(self, uid: str) -> SinkNode:
        return next(node for node in self._graph.sinks if node.uid == uid)

    def _history(self, manifest: SnapshotRoot) -> Sequence[int]:
        """What a point of the lineage descends from; of no use, nor asked, without a sink."""
        return history_of(self._writer.entries, manifest) if self._graph.sinks else ()

    def _without_sink(self, staged: _Committables) -> Iterator[str]:
        uids = {node.uid for node in self._graph.sinks}
        for uid, items in staged.items():
            if items and uid not in uids:
                yield (
                    f"the restore point covers output of a sink that the job no longer has; it "
                    f"stays unpublished unless it was published already: uid={uid} "
                    f"rows={_rows(items)}"
                )

    def _live(
        self, entries: Sequence[Entry], pending: Sequence[PendingSavepoint] = ()
    ) -> list[tuple[Sequence[int], _Committables]] | None:
        """What all retained checkpoints and savepoints cover; None when that cannot be known."""
        existing = retained(entries)
        for gone in self._known.keys() - {c.checkpoint_id for c in existing}:
            del self._known[gone]
        try:
            for checkpoint in existing:
                if checkpoint.checkpoint_id not in self._known:
                    sinks = self._store.load_root(checkpoint).sinks
                    self._known[checkpoint.checkpoint_id] = sinks
            written = (m for m in self._savepoints() if m.lineage == self._writer.lineage)
            own: list[SnapshotRoot | PendingSavepoint] = [*written, *pending]
        except (CorruptState, StoreUnavailable, StoreDenied, NewerFormat) as error:
            text = f"no output is forgotten while a manifest cannot be read: {error}"
            _log.warning("%s", text)
            # What passes by itself is nothing for people.
            self._hindered = "" if isinstance(error, StoreUnavailable) else text
            return None
        self._hindered = ""
        ids = [c.checkpoint_id for c in existing]
        # There may be hundreds of savepoints, and what is before one does not change.
        wanted = {*ids, *(one.checkpoint_id for one in own)}
        lines = {i: line for i, line in self._lines.items() if i in wanted}
        lines |= lines_of(entries, wanted - lines.keys())
        self._lines = lines
        return [
            *((lines[i], self._known[i]) for i in ids),
            *((lines.get(one.checkpoint_id) or history_of(entries, one), one.sinks) for one in own),
        ]


class HeldOutput(OutputKeeper):
    """That of a driver which stands by: its sinks drop what they get."""

    def restore(self, run: int, manifest: SnapshotRoot | None) -> Iterator[str]:
        """There is no output to be taken back, and none to be published again."""
        del run, manifest
        return iter(())

    def _history(self, manifest: SnapshotRoot) -> Sequence[int]:
        """Not asked: the log of a driver that stands by is not the lineage's."""
        del manifest
        return ()


def check_sinks(
    graph: JobGraph, manifest: SnapshotRoot, lineage: str, entries: Sequence[Entry]
) -> None:
    """Refuse a point whose output a sink cannot publish; nothing is changed by that.

    Output of another lineage is published by that one.

    Args:
        entries: the log.

    Raises:
        RestorePointIncompatible: a sink of another kind staged it.
        CorruptState: it is not there.
    """
    if manifest.lineage != lineage:
        return
    held = _held(graph, manifest, entries)
    for node in graph.sinks:
        call = getattr(node.sink, "check_covered", None)
        if call is None:
            continue
        try:
            call(lineage, list(held.get(node.uid, [])))
        except UserError as error:
            text = f"a sink cannot publish what the restore point covers: sink={node.uid}: {error}"
            raise RestorePointIncompatible(text) from error
        except CorruptState as error:
            text = f"{error.message}: sink={node.uid}"
            raise CorruptState(text, error.path, error.advice) from error


def check_sinks_beside(
    graph: JobGraph,
    lineage: str,
    entries: Sequence[Entry],
    choice: Choice,
    again: Callable[[], Choice],
) -> None:
    """As `check_sinks`, beside a driver that lets go of what it has no more use for.

    Args:
        entries: the log when it was chosen.
        again: chooses anew.
    """
    for more in reversed(range(_LOOKS + 1)):
        try:
            if choice.manifest is not None:
                check_sinks(graph, choice.manifest, lineage, entries)
        except (RestorePointIncompatible, CorruptState):
            if not more or (newer := again()).path == choice.path:
                raise
            choice = newer
        else:
            return


def _held(graph: JobGraph, manifest: SnapshotRoot, entries: Sequence[Entry]) -> _Committables:
    """What a point of the lineage covers and sinks must have.

    Of a copy whose checkpoint was let go, a sink that takes nothing back has published all, and
    may have forgotten that.
    """
    if not is_followed(entries, manifest.checkpoint_id):
        return manifest.sinks
    forgot = {node.uid for node in graph.sinks if not hasattr(node.sink, "takes_back")}
    return {uid: items for uid, items in manifest.sinks.items() if uid not in forgot}


def history_of(entries: Sequence[Entry], manifest: SnapshotRoot | PendingSavepoint) -> Line:
    """The checkpoints that a point descends from, oldest first, its own id last.

    Raises RestorePointIncompatible where the log does not tell.
    """
    if is_known(entries, manifest.checkpoint_id):
        return ancestors(entries, manifest.checkpoint_id)
    # One that the log does not know: it follows what its run completed before, or started from.
    parent: int | None = None
    told = False
    for entry in entries:
        match entry:
            case Run(fence=manifest.fence, run=manifest.run):
                parent = entry.restored_id or checkpoint_id_of(entry.restored_from or "")
                told = True
            case Checkpoint(fence=manifest.fence, run=manifest.run):
                if entry.epoch <= manifest.epoch and entry.checkpoint_id < manifest.checkpoint_id:
                    parent, told = entry.checkpoint_id, True
    before = ancestors(entries, parent) if parent is not None else Line()
    line = before.then(manifest.checkpoint_id)
    # What the log will say once a run began from it: where it was set back, and went on since, that
    # is something else.
    begun = (*entries, Run(manifest.fence, manifest.run, restored_id=manifest.checkpoint_id))
    later = ancestors(begun, manifest.checkpoint_id)
    if not told or (is_known(begun, manifest.checkpoint_id) and later != line):
        # As if nothing came before it, all output before it would be taken back.
        raise RestorePointIncompatible(
            f"the log does not tell any more which output the restore point follows: "
            f"checkpoint={checkpoint_path(manifest.checkpoint_id)} "
            f"run={run_token(manifest.fence, manifest.run)}; choose another one, or start a new "
            f"lineage from it in an empty checkpoint directory"
        )
    return line


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


@contextmanager
def _in_sink(uid: str, call: str, where: str) -> Iterator[None]:
    """What a sink raises ends the run with a sentence that says which, and where."""
    try:
        yield
    except MoorageError:
        raise
    except Py4JError as error:
        # A sink may have asked Spark: what that has lost, another run may have.
        raise failure_of(error) from error
    except Exception as error:
        _log.warning("a sink failed: sink=%s call=%s %s", uid, call, where, exc_info=True)
        raise UserError(
            f"a sink failed; the next run calls it again: sink={uid} call={call} {where} "
            f"error={type(error).__name__}: {error}"
        ) from error


def _of_the_run(error: UserError) -> UserError:
    """What a sink or the job's function did is the job's failure, not the manifest's."""
    return RunRefused(*error.args) if type(error) is UserError else error


def _rows(items: Sequence[Committable]) -> int:
    return sum(int(item.get("rows", 0)) for item in items)
