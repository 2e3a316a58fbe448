"""Output files in a local directory: published by rename, readable as a plain folder.

`_moorage_log/` lists files by checkpoint, written before they are renamed. Going back moves files
that the log lists to `_retracted/`, from where going forward again brings them back. A published
file belongs to whoever reads it: it may be moved, compacted or deleted.
"""

import contextlib
import os
import shutil
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from uuid import uuid4

from moorage.api.sinks import (
    Committable,
    LiveOutput,
    SinkOrigin,
    SinkRestore,
    SinkRetire,
    StageId,
)
from moorage.sinks.file_names import (
    BESIDE_SUFFIX,
    IF_MISSING,
    RUN_SUFFIX,
    Age,
    age_of,
    is_not_newer,
    lost,
    neighbours_in,
    newer_run,
    older_marks,
    require_kind,
    run_age,
    taken_over,
)
from moorage.sinks.records import (
    Records,
    compaction,
    decode,
    encode,
    live_ids,
    record_name,
    sweep_is_due,
    together,
)
from moorage_state import failpoints
from moorage_state.errors import CorruptState, disk_errors

_STAGING = "_staging"
_LOG = "_moorage_log"
_RETRACTED = "_retracted"
_RUN_DEPTH = 3
"""Names that lead to where a run stages: `_staging/<lineage>/<run>`."""
_ATTEMPTS = 20
"""How often a folder is made anew that the driver found empty, and removed, meanwhile."""


class StagingFolder:
    """Where one attempt stages its files; see `StagingArea`."""

    def __init__(self, root: Path, stage: StageId) -> None:
        self._root = root
        self._folder = root / _STAGING / stage.lineage / stage.run
        self._is_named = False

    def create(self, file: str) -> Path:
        """A path under `_staging`, in the partition's directory."""
        path = self._folder / file
        with disk_errors("make a folder for output", path.parent):
            for more in reversed(range(_ATTEMPTS)):
                try:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    # A folder stays once something is in it.
                    path.touch()
                    break
                except (FileNotFoundError, FileExistsError):
                    if not more:
                        raise
        return path

    def keep(self, file: str, path: Path) -> Committable:
        """Sync the file and the names that lead to it."""
        # The folder's own name is new, and those above it may be; they are synced once.
        last = self._folder if self._is_named else self._root
        with disk_errors("sync an output file", path):
            _sync(path)
            for folder in path.parents:
                _sync(folder)
                if folder == last:
                    break
        self._is_named = True
        failpoints.hit("sink.staged")
        return {"staged": str((self._folder / file).relative_to(self._root))}

    def drop(self, file: str, path: Path) -> None:
        """Remove the staged file."""
        del file
        with disk_errors("drop an output file", path):
            path.unlink(missing_ok=True)
            _drop_empty(path.parent, self._folder)


class Folder:
    """The output below `root`; the driver's phases of `Sink` on it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        # What a restore took back is not kept until the next look at it is due.
        self._restored = False
        self._retired_at = 0

    def admit(self, lineage: str, origin: SinkOrigin | None, *, keep: bool) -> list[str]:
        """Refuse a folder whose readers would see rows twice, unless told to `keep` it as it is."""
        found = neighbours_in(lineage, self.files())
        if not keep:
            beside = _names(self._root / _LOG / origin.lineage) if origin is not None else set()
            found.require_admissible(f"directory={self._root}", lineage, origin, beside)
        log = self._root / _LOG / lineage
        for other in found.files:
            log.mkdir(parents=True, exist_ok=True)
            (log / f"{other}{BESIDE_SUFFIX}").touch()
        if not found.strange or keep:
            return []
        told = (
            f"the output folder has files that no job wrote, and readers see them beside the "
            f"output: directory={self._root} files={len(found.strange)} first={min(found.strange)}"
        )
        return [told]

    def check_covered(self, lineage: str, committables: list[Committable]) -> None:
        """Refuse output of another folder or kind of sink; see `Sink`."""
        _require_files(self._root, lineage, committables)

    def publish(self, lineage: str, checkpoint_id: int, committables: list[Committable]) -> int:
        """Record staged files, then rename them into place; see `Sink.publish`."""
        _require_files(self._root, lineage, committables)
        if committables:
            _write_log(
                self._root / _LOG / lineage, checkpoint_id, [i["file"] for i in committables]
            )
            failpoints.hit("sink.recorded")
            _rename(self._root, committables)
        return sum(int(item["rows"]) for item in committables)

    def restore(self, point: SinkRestore) -> list[str]:
        """Take back, publish, bring back, drop; see `Sink.restore`.

        Every step can be cut short: the next restore does what is left.
        """
        lineage, own = point.lineage, run_age(point.run)
        _require_files(self._root, lineage, point.committables)
        _claim(self._root, lineage, point.run)

        def check() -> None:
            _require_newest(self._root, lineage, point.run)

        log = _read_log(self._root / _LOG / lineage)
        listed = set().union(*log.values())
        covered = _covered(log, [LiveOutput(point.history, point.committables)])

        retracted = self._root / _RETRACTED / lineage
        # In this order readers may miss rows in between but see none twice.
        surplus = {name for name in listed - covered if is_not_newer(lineage, name, own)}
        taken = _move(surplus, self._root, retracted, check)
        failpoints.hit("sink.taken_back")
        if point.history:
            self.publish(lineage, point.history[-1], point.committables)
        older = _older_runs(self._root / _STAGING / lineage, own)
        wanted = listed.union(*(_files(output) for output in point.live or ()))
        for staged in older:
            # Listed but not renamed, or not even listed: the end of the process came between the
            # checkpoint and its publication. Keep it, too.
            _move(wanted & _tree(staged), staged, retracted, check)
        hidden = {name for name in covered & _tree(retracted) if not (self._root / name).exists()}
        brought = _move(hidden, retracted, self._root, check)
        failpoints.hit("sink.brought_back")
        for staged in older if point.live is not None else []:
            shutil.rmtree(staged, ignore_errors=True)
        self._restored = True
        return _sentences(self._root, retracted, taken, brought)

    def retire(self, point: SinkRetire) -> None:
        """Forget what no restore can ask for: see `SinkRetire`. May be cut short anywhere."""
        lineage, log_folder = point.lineage, self._root / _LOG / point.lineage
        if not self._root.is_dir() or newer_run(_names(log_folder), run_age(point.run)):
            return
        failpoints.hit("sink.unread")
        retracted, staging = self._root / _RETRACTED / lineage, self._root / _STAGING / lineage
        at = point.checkpoint_id
        looks = self._restored or sweep_is_due(self._retired_at or at - 1, at, every=1)
        kept = _tree(retracted) if looks else set()
        # Reading all records takes a while, and most of the time there is nothing to forget.
        log = _read_log(log_folder) if kept else {}
        for name in kept - _covered(log, point.live):
            if is_not_newer(lineage, name, run_age(point.run)):
                _remove(retracted, name)
        self._restored, self._retired_at = False, at
        failpoints.hit("sink.forgotten")
        wanted: set[str] = set().union(*(_files(output) for output in point.live))
        for run in sorted(_names(staging)):
            for name in _tree(staging / run) - wanted:
                if lost(point, name):
                    _remove(staging / run, name)
        _compact(self._root, point, wanted)

    def files(self) -> list[str]:
        """All published files, and whatever else lies in the folder where readers look."""
        found = []
        for folder, folders, names in os.walk(self._root):
            folders[:] = [n for n in folders if not n.startswith(".") and _is_data(n)]
            found += [str(Path(folder, n)) for n in names if not n.startswith(".") and _is_data(n)]
        return sorted(found)


def _is_data(name: str) -> bool:
    """Whether readers look at a name: those with an underscore are skipped, but for partitions."""
    return not name.startswith("_") or "=" in name


def _compact(root: Path, point: SinkRetire, wanted: set[str]) -> None:
    """Put records together, if it is time to."""
    folder = root / _LOG / point.lineage
    names = together({path.name: path.stat().st_size for path in folder.glob("[0-9]*.json")})
    log = _read_log(folder, names)
    places = (root, root / _RETRACTED / point.lineage)
    old = set().union(*log.values()) - wanted
    gone = {name for name in old if not any((place / name).exists() for place in places)}
    plan = compaction(names, log, live_ids(point, log), gone)
    if plan is None:
        return
    _replace(folder / plan.name, plan.data)
    failpoints.hit("sink.compacted")
    for name in plan.obsolete:
        (folder / name).unlink(missing_ok=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _require_files(root: Path, lineage: str, committables: list[Committable]) -> None:
    """Refuse to lose output."""
    require_kind(f"directory={root}", committables, "staged")
    places = (root / _RETRACTED / lineage, root)
    missing = [
        item["file"]
        for item in committables
        if not (root / item["staged"]).exists()
        and not any((place / item["file"]).exists() for place in places)
    ]
    if not missing:
        return
    listed = set().union(*_read_log(root / _LOG / lineage).values())
    for name in missing:
        # A listed file that is nowhere was published, and its owner took it away: their right.
        if name not in listed:
            raise CorruptState(
                "an output file that the checkpoint covers is neither staged nor published",
                path=str(root / name),
                advice=IF_MISSING,
            )


def _claim(root: Path, lineage: str, run: str) -> None:
    """Leave a mark of this run, and raise Fenced where a newer one left its own."""
    if not root.is_dir():
        return
    _require_newest(root, lineage, run)
    folder = root / _LOG / lineage
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{run}{RUN_SUFFIX}").touch()
    _sync(folder)
    for name in older_marks(_names(folder), run_age(run)):
        (folder / name).unlink(missing_ok=True)


def _require_newest(root: Path, lineage: str, run: str) -> None:
    if newer := newer_run(_names(root / _LOG / lineage), run_age(run)):
        raise taken_over(f"directory={root}", newer, run)


def _covered(log: Records, outputs: Iterable[LiveOutput]) -> set[str]:
    """What is visible at one of these points, or becomes visible by restoring it."""
    covered: set[str] = set()
    for output in outputs:
        covered |= _files(output)
        covered.update(*(files for i, files in log.items() if i in output.history))
    return covered


def _files(output: LiveOutput) -> set[str]:
    return {item["file"] for item in output.committables}


def _rename(root: Path, committables: list[Committable]) -> None:
    """Move what is still staged; what was moved before a crash stays where it is."""
    folders = {root}
    for item in committables:
        target = root / item["file"]
        if target.parent != root:
            target.parent.mkdir(parents=True, exist_ok=True)
            folders.update(p for p in target.parents if root in p.parents)
        with contextlib.suppress(FileNotFoundError):
            (root / item["staged"]).rename(target)
            failpoints.hit("sink.renamed")
    for folder in sorted(folders, reverse=True):
        _sync(folder)
    for staged in {Path(item["staged"]).parent for item in committables}:
        # Each checkpoint of the run looks at all that is left below its folder.
        _drop_empty(root / staged, root.joinpath(*staged.parts[:_RUN_DEPTH]))


def _write_log(log: Path, checkpoint_id: int, files: list[str]) -> None:
    log.mkdir(parents=True, exist_ok=True)
    _replace(log / record_name(checkpoint_id), encode(checkpoint_id, files))


def _replace(target: Path, text: str) -> None:
    temporary = target.with_name(f".{target.name}.{uuid4().hex}")
    temporary.write_text(text)
    _sync(temporary)
    temporary.rename(target)
    _sync(target.parent)


def _read_log(log: Path, names: Iterable[str] | None = None) -> Records:
    """Files by checkpoint: of all records, or of some."""
    entries = log.glob("[0-9]*.json") if names is None else (log / name for name in names)
    return decode(((entry.name, entry.read_bytes()) for entry in entries), str(log))


def _names(directory: Path) -> set[str]:
    try:
        return {path.name for path in directory.iterdir()}
    except FileNotFoundError:
        return set()


def _tree(directory: Path) -> set[str]:
    """The files below a directory, by their relative paths."""
    return {
        os.path.relpath(os.path.join(folder, name), directory)  # noqa: PTH118 - thousands of them
        for folder, _, names in os.walk(directory)
        for name in names
    }


def _move(names: Collection[str], source: Path, target: Path, check: Callable[[], None]) -> int:
    """Rename files into another directory; returns how many there were to rename."""
    folders: set[Path] = set()
    moved = 0
    for name in sorted(names):
        if not (source / name).exists():
            continue
        # A newer run may have taken over: this one may have stalled for long.
        check()
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            (source / name).rename(target / name)
            folders |= {(target / name).parent, (source / name).parent, target}
            moved += 1
            failpoints.hit("sink.moved")
    for folder in sorted(folders):
        _sync(folder)
    return moved


def _remove(directory: Path, name: str) -> None:
    """Delete a file and the partition directories that it leaves empty."""
    (directory / name).unlink(missing_ok=True)
    _drop_empty((directory / name).parent, directory)


def _drop_empty(folder: Path, top: Path) -> None:
    """Delete directories that are empty, from this one up to `top`, which stays."""
    for one in (folder, *folder.parents):
        if one == top:
            return
        with contextlib.suppress(OSError):
            one.rmdir()


def _older_runs(staging: Path, own: Age) -> list[Path]:
    """The staging directories of runs before `own`."""
    runs = ((name, age_of(name)) for name in sorted(_names(staging)))
    return [staging / name for name, run in runs if run is not None and run < own]


def _sentences(root: Path, retracted: Path, taken: int, brought: int) -> list[str]:
    sentences = []
    if taken:
        sentences.append(
            f"took back published files that the restore point does not cover: directory={root} "
            f"files={taken} moved_to={retracted}"
        )
    if brought:
        sentences.append(
            f"brought back files that an earlier restore took back: directory={root} "
            f"files={brought} moved_from={retracted}"
        )
    return sentences
