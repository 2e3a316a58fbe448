"""The files of a snapshot as those of a savepoint: which they are, and bringing them there.

Decides the manifest of a copy, and that every file is checked against its digest on the way. Files
go through the local temporary directory, a few at a time. It knows neither who asks nor whether the
target's directory may be written: that is claimed before, and the manifest is put after.
"""

import hashlib
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from moorage_state.errors import CorruptState, LocalDiskError, ObjectNotFound, StoreUnavailable
from moorage_state.snapshots.manifest import FileRef, Manifest
from moorage_state.snapshots.savepoints import savepoint_key
from moorage_state.stores import ObjectStore, in_parallel

__all__ = ["Piece", "as_savepoint", "bring"]

_THREADS = 4
_ADVICE = "nothing was completed; copy another checkpoint, or restore this one from a backup"


class Piece(NamedTuple):
    """One file: as the source has it, and as the copy will."""

    source: FileRef
    target: FileRef


def as_savepoint(manifest: Manifest, name: str, folder: str = "") -> tuple[Manifest, list[Piece]]:
    """The manifest of the copy, and the files to bring there. Equal for equal arguments.

    Args:
        manifest: of the source.
        name: of the savepoint.
        folder: within the savepoint's directory, ending in `/`, where its files go; empty for the
            directory itself.
    """
    pieces: list[Piece] = []

    def file(uid: str, start: int, end: int, ref: FileRef) -> FileRef:
        if ref.inline is not None:
            return replace(ref, shared=False)
        key = f"{folder}{savepoint_key(uid, start, end, ref.name)}"
        target = replace(ref, key=key, offset=0, shared=False)
        pieces.append(Piece(ref, target))
        return target

    operators = {}
    for uid, operator in manifest.operators.items():
        handles = [
            replace(h, files=[file(h.uid, h.start, h.end, ref) for ref in h.files])
            for h in operator.subtasks
        ]
        operators[uid] = replace(operator, subtasks=handles)
    return replace(manifest, kind="savepoint", name=name, operators=operators), pieces


def bring(
    source: ObjectStore,
    target: ObjectStore,
    pieces: list[Piece],
    progress: Callable[[int, int], None] = lambda _bytes, _total: None,
) -> int:
    """Bring the files to the target; how many were there already, from a copy that did not end.

    Args:
        progress: called from several threads with bytes that arrived and how many there are.

    Raises:
        CorruptState: the source is damaged; names the object.
        StoreUnavailable: a store does not answer; call again.
        LocalDiskError: the temporary directory is full.
    """
    total = sum(piece.source.size for piece in pieces)
    with _scratch() as scratch:
        mover = _Mover(source, target, scratch)
        tasks = (partial(_moved, mover, piece, progress, total) for piece in pieces)
        return sum(in_parallel(tasks, _THREADS, "copy"))


@contextmanager
def _scratch() -> Iterator[Path]:
    try:
        folder = tempfile.TemporaryDirectory(prefix="moorage-copy-")
    except OSError as error:
        raise LocalDiskError(
            f"cannot make a temporary directory: path={tempfile.gettempdir()} error={error}; make "
            f"room there, or set TMPDIR to a larger volume"
        ) from error
    with folder as path:
        yield Path(path)


def _moved(mover: "_Mover", piece: Piece, progress: Callable[[int, int], None], total: int) -> bool:
    resumed = mover.move(piece)
    progress(piece.source.size, total)
    return resumed


class _Mover:
    """Moves single files through a scratch directory; used by several threads."""

    def __init__(self, source: ObjectStore, target: ObjectStore, scratch: Path) -> None:
        self._source = source
        self._target = target
        self._scratch = scratch

    def move(self, piece: Piece) -> bool:
        """Bring one file to the target; whether it was there already.

        What lies under its key can only come from this very copy, and objects are put whole.
        """
        if self._is_there(piece.target):
            return True
        path = self._scratch / f"{threading.get_ident()}"
        try:
            self._fetch(piece.source, path)
            self._target.put_file(piece.target.key, path)
        finally:
            path.unlink(missing_ok=True)
        if not self._is_there(piece.target):
            raise StoreUnavailable(
                f"store does not have what was put into it: store={self._target.url} "
                f"key={piece.target.key} bytes={piece.target.size}; run the same command again"
            )
        return False

    def _is_there(self, ref: FileRef) -> bool:
        info = self._target.head(ref.key)
        return info is not None and info.size == ref.size

    def _fetch(self, ref: FileRef, path: Path) -> None:
        where = f"{self._source.url}/{ref.key}"
        try:
            self._source.get_to_file(ref.key, path, offset=ref.offset, length=ref.size)
        except ObjectNotFound as error:
            raise CorruptState("object of the snapshot is missing", where, _ADVICE) from error
        try:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise LocalDiskError(f"cannot read local file: path={path} error={error}") from error
        if digest != ref.sha256:
            raise CorruptState("object of the snapshot does not match its checksum", where, _ADVICE)
