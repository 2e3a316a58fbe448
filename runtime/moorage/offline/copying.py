"""`snapshots copy`: a checkpoint or savepoint as a savepoint's directory of its own, anywhere.

Decides where a copy may go, and that it exists only when all of it is there: the directory is
claimed first, the manifest comes last. The same copy begun again goes on where it stopped, because
the claim says of which bytes it is. Files go through the local temporary directory, a few at a
time, and each is checked against its digest on the way.
"""

import hashlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from msgspec.structs import replace

from moorage.offline.places import Found
from moorage_state.errors import (
    CorruptState,
    LocalDiskError,
    ObjectNotFound,
    StoreUnavailable,
    UserError,
)
from moorage_state.snapshots import (
    FileRef,
    Manifest,
    SavepointStore,
    encode_manifest,
    manifest_digest,
    savepoint_key,
)
from moorage_state.stores import ObjectStore, in_parallel
from moorage_state.stores.addresses import address, parent_and_name, same_or_below

__all__ = ["Copied", "copy"]

_THREADS = 4
_ADVICE = "nothing was completed; copy another checkpoint, or restore this one from a backup"


@dataclass(frozen=True, slots=True)
class Copied:
    """What was done; `resumed_files` were there already, from a copy that did not end."""

    source: str
    path: str
    name: str
    files: int
    bytes: int
    resumed_files: int


class _Piece(NamedTuple):
    """One file: as the source has it, and as the copy will."""

    source: FileRef
    target: FileRef


def copy(
    found: Found, target: str, *, full: bool = False, progress: Callable[[int, int], None]
) -> Copied:
    """Copy a snapshot to the new directory `target`, whose last segment is the savepoint's name.

    Args:
        full: read the whole copy back and check every byte of it before it is completed.
        progress: called from several threads with bytes that arrived and how many there are.

    Raises:
        UserError: the target exists, is not empty, or lies where it must not.
        CorruptState: the source is damaged; names the object.
        StoreUnavailable: a store does not answer; the same command goes on where it stopped.
        LocalDiskError: the temporary directory is full.
    """
    url = address(target)
    name = _check_target(found, url)
    manifest, pieces = _copied(found.snapshot.manifest, name)
    savepoint = SavepointStore(url, create=True)
    if savepoint.exists():
        savepoint.check_empty()
    savepoint.begin(f"copy of {manifest_digest(encode_manifest(manifest))}")
    total = sum(piece.source.size for piece in pieces)
    with _scratch() as scratch:
        mover = _Mover(found.store, savepoint.store, scratch)
        tasks = (partial(_moved, mover, piece, progress, total) for piece in pieces)
        resumed = sum(in_parallel(tasks, _THREADS, "copy"))
    if full:
        savepoint.verify(manifest, full=True)
    savepoint.create(manifest)
    return Copied(found.snapshot.path, url, name, len(pieces), total, resumed)


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


def _check_target(found: Found, url: str) -> str:
    """The name of the copy. Raises `UserError` for a place that is not free for it."""
    split = parent_and_name(url)
    if split is None:
        raise UserError(f"not a directory for a copy: target={url}; name a new directory in it")
    for taken in (found.store.url, found.snapshot.path):
        one, other = _real(url), _real(taken)
        if same_or_below(one, other) or same_or_below(other, one):
            raise UserError(
                f"a copy needs a directory outside of what it copies: target={url} "
                f"source={found.snapshot.path}; choose one beside {found.store.url}"
            )
    return split[1]


def _real(url: str) -> str:
    """The address of a local directory without symbolic links; others as they are."""
    if not url.startswith("file://"):
        return url
    return f"file://{os.path.realpath(unquote(url.removeprefix('file://')))}"


def _copied(manifest: Manifest, name: str) -> tuple[Manifest, list[_Piece]]:
    """The manifest of the copy, and the files to bring there. Equal for equal sources."""
    pieces: list[_Piece] = []

    def file(uid: str, start: int, end: int, ref: FileRef) -> FileRef:
        if ref.inline is not None:
            return replace(ref, shared=False)
        key = savepoint_key(uid, start, end, ref.name)
        target = replace(ref, key=key, offset=0, shared=False)
        pieces.append(_Piece(ref, target))
        return target

    operators = {}
    for uid, operator in manifest.operators.items():
        handles = [
            replace(h, files=[file(h.uid, h.start, h.end, ref) for ref in h.files])
            for h in operator.subtasks
        ]
        operators[uid] = replace(operator, subtasks=handles)
    return replace(manifest, kind="savepoint", name=name, operators=operators), pieces


def _moved(
    mover: "_Mover", piece: _Piece, progress: Callable[[int, int], None], total: int
) -> bool:
    resumed = mover.move(piece)
    progress(piece.source.size, total)
    return resumed


class _Mover:
    """Moves single files through a scratch directory; used by several threads."""

    def __init__(self, source: ObjectStore, target: ObjectStore, scratch: Path) -> None:
        self._source = source
        self._target = target
        self._scratch = scratch

    def move(self, piece: _Piece) -> bool:
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
