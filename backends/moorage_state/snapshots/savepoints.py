"""Savepoints: self-contained directories that a person owns.

    <dir>/ATTEMPT                        who began to write it; from then on nobody else may
    <dir>/MANIFEST                       written last: with it the savepoint exists
    <dir>/state/<uid>/<start>-<end>/...  files; keys in the manifest are relative to <dir>
    <dir>/packs/<name>                   several small files of native savepoints in one object
    <dir>/<run>-<id>/...                 all files of a savepoint that another run had begun

Decides when a savepoint exists and that two writers never mix in one directory. Nothing here ever
deletes. Called by the driver (which takes and restores savepoints), by `moorage.state` and by the
command line. It does not know what lies in the files.
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

from moorage_state.errors import (
    AlreadyExists,
    Bug,
    CorruptState,
    LocalDiskError,
    ObjectNotFound,
    StoreUnavailable,
    UserError,
)
from moorage_state.snapshots.checkpoints import verify_files
from moorage_state.snapshots.manifest import (
    FileRef,
    Manifest,
    decode_manifest,
    encode_manifest,
    manifest_digest,
)
from moorage_state.stores import ObjectStore, check_key, in_parallel, open_store, put_once

MANIFEST_KEY = "MANIFEST"
ATTEMPT_KEY = "ATTEMPT"

_NEXT_STEP = "restore it from a backup, or use another savepoint"

_THREADS = 4
_ADVICE = "nothing was completed; copy another checkpoint, or restore this one from a backup"


class SavepointConflict(UserError):
    """The directory is another's: it holds a savepoint, a begun one, or anything else."""

    code = "savepoint_name_conflict"


def savepoint_key(uid: str, start: int, end: int, name: str) -> str:
    """The key of a file of a range, relative to the savepoint's directory."""
    return check_key(f"state/{uid}/{start}-{end}/{name}")


class SavepointStore:
    """One savepoint's directory, at the address `url`, for writing it or reading it.

    Raises UserError where the address is not supported, or its directory does not exist and is not
    to be created; and StoreUnavailable.
    """

    def __init__(self, url: str, *, create: bool = False) -> None:
        self._store = open_store(url, create=create)

    @classmethod
    def over(cls, store: ObjectStore) -> "SavepointStore":
        """The savepoint's directory that `store` is."""
        made = cls.__new__(cls)
        made._store = store  # noqa: SLF001  its own
        return made

    @property
    def store(self) -> ObjectStore:
        """The objects of the savepoint; the keys of its manifest are keys in it."""
        return self._store

    @property
    def url(self) -> str:
        """The address."""
        return self._store.url

    def exists(self) -> bool:
        """Whether there is a completed savepoint."""
        return self._store.head(MANIFEST_KEY) is not None

    def begun(self) -> bool:
        """Whether somebody began to write one here, completed or not."""
        return self._attempt() is not None

    def digest(self) -> str:
        """The digest of the manifest that lies there. Raises `ObjectNotFound` if there is none."""
        return manifest_digest(self._store.get(MANIFEST_KEY))

    def begin(self, attempt: str) -> bool:
        """Claim the directory; files may be put into it only after this.

        Repeating it with the same `attempt` is harmless, also after a lost reply. Returns whether
        nobody began before: else a writer of the same attempt may still be at work, and files must
        lie where it puts none.

        Raises `SavepointConflict` where anything is there already, and StoreUnavailable: the
        directory may be claimed then; call again.
        """
        try:
            self.check_empty()
            self._store.put_if_absent(ATTEMPT_KEY, attempt.encode())
        except (AlreadyExists, SavepointConflict):
            if self._attempt() != attempt:
                self.check_empty()
                raise
            return False
        return True

    def check_empty(self) -> None:
        """Say early what `begin` would refuse. Raises `SavepointConflict`."""
        found = next(iter(self._store.list("")), None)
        if found is not None:
            what = "a savepoint" if self.exists() else f"unfinished or foreign: {found.key}"
            raise SavepointConflict(
                f"savepoint directory is not empty: path={self.url} found={what!r}; choose another "
                f"name, or delete the directory first"
            )

    def completed_by(self, attempt: str) -> Manifest | None:
        """The savepoint, if it is complete and this attempt made it; None if it may be begun.

        Raises `SavepointConflict` where the directory is not this attempt's and not empty; as
        `load` does.
        """
        if self._attempt() != attempt:
            self.check_empty()
            return None
        return self.load() if self.exists() else None

    def create(self, manifest: Manifest) -> str:
        """Write the manifest, with which the savepoint exists; returns its digest.

        All its files must be in place. Repeating it with the same manifest is harmless.

        Raises `SavepointConflict` where another savepoint exists in this directory, and
        StoreUnavailable: the savepoint may exist then; call again.
        """
        _check_own(manifest)
        data = encode_manifest(manifest)
        try:
            put_once(self._store, MANIFEST_KEY, data)
        except AlreadyExists as error:
            raise SavepointConflict(
                f"a savepoint exists in this directory: path={self.url}; choose another name"
            ) from error
        return manifest_digest(data)

    def load(self, digest: str = "") -> Manifest:
        """The manifest; with `digest`, exactly the one that `create` returned it for.

        Raises:
            UserError: there is no savepoint here, or a newer Moorage wrote it.
            CorruptState: the manifest is damaged, or another one.
            StoreUnavailable: the store does not answer.
        """
        path = f"{self.url}/{MANIFEST_KEY}"
        try:
            data = self._store.get(MANIFEST_KEY)
        except ObjectNotFound as error:
            raise self._missing() from error
        try:
            manifest = decode_manifest(data, path)
        except CorruptState as error:
            raise CorruptState(error.message, error.path, _NEXT_STEP) from error
        if digest and manifest_digest(data) != digest:
            raise CorruptState("manifest is not the one that was written", path, _NEXT_STEP)
        if manifest.kind != "savepoint":
            raise UserError(
                f"not a savepoint but a checkpoint of a lineage: path={self.url}; name it as "
                f"<checkpoint directory>/chk-<id>"
            )
        return manifest

    def verify(self, manifest: Manifest | None = None, *, full: bool = False) -> Manifest:
        """Check that every file is there with its size, and with `full` its bytes.

        Raises: see `load`, and `CorruptState` naming the first object that is not as it should be.
        """
        loaded = manifest or self.load()
        try:
            verify_files(self._store, loaded, full=full)
        except CorruptState as error:
            raise CorruptState(error.message, error.path, _NEXT_STEP) from error
        return loaded

    def _attempt(self) -> str | None:
        try:
            return self._store.get(ATTEMPT_KEY).decode(errors="replace")
        except ObjectNotFound:
            return None

    def _missing(self) -> UserError:
        if self._attempt() is not None:
            return UserError(
                f"savepoint was begun and never completed: path={self.url}; use another one"
            )
        return UserError(
            f"no savepoint here: path={self.url}; name the directory that holds its MANIFEST"
        )


def _check_own(manifest: Manifest) -> None:
    """A savepoint must not need anything outside of its directory."""
    if manifest.kind != "savepoint" or not manifest.name:
        raise Bug(f"not the manifest of a savepoint: kind={manifest.kind} name={manifest.name!r}")
    for file in manifest.files:
        if file.shared or file.key.startswith(("chk-", "shared/")):
            raise Bug(f"savepoint references an object of a checkpoint: key={file.key}")


class Piece(NamedTuple):
    """One file: as the source has it, and as the copy will."""

    source: FileRef
    target: FileRef


def as_savepoint(manifest: Manifest, name: str, folder: str = "") -> tuple[Manifest, list[Piece]]:
    """The manifest of the copy, and the files to bring there. Equal for equal arguments.

    `folder` is where in the savepoint's directory its files go, ending in `/`; empty for the
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
    return replace(manifest.in_one, kind="savepoint", name=name, operators=operators), pieces


def bring(
    source: ObjectStore,
    target: ObjectStore,
    pieces: list[Piece],
    progress: Callable[[int, int], None] = lambda _bytes, _total: None,
) -> int:
    """Bring the files to the target; how many were there already, from a copy that did not end.

    `progress` is called from several threads with bytes that arrived and how many there are.

    Raises CorruptState naming the object where the source is damaged, StoreUnavailable (call
    again), and LocalDiskError where the temporary directory is full.
    """
    total = sum(piece.source.size for piece in pieces)

    def move(scratch: Path, piece: Piece) -> bool:
        resumed = _moved(source, target, scratch, piece)
        progress(piece.source.size, total)
        return resumed

    with _scratch() as scratch:
        return sum(in_parallel((partial(move, scratch, p) for p in pieces), _THREADS, "copy"))


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


def _moved(source: ObjectStore, target: ObjectStore, scratch: Path, piece: Piece) -> bool:
    """Bring one file to the target, checked on the way; whether it was there already."""
    # What lies under its key can only come from this very copy, and objects are put whole.
    if _is_there(target, piece.target):
        return True
    path = scratch / f"{threading.get_ident()}"
    try:
        _fetch(source, piece.source, path)
        target.put_file(piece.target.key, path)
    finally:
        path.unlink(missing_ok=True)
    if not _is_there(target, piece.target):
        raise StoreUnavailable(
            f"store does not have what was put into it: store={target.url} "
            f"key={piece.target.key} bytes={piece.target.size}; run the same command again"
        )
    return False


def _is_there(store: ObjectStore, ref: FileRef) -> bool:
    info = store.head(ref.key)
    return info is not None and info.size == ref.size


def _fetch(store: ObjectStore, ref: FileRef, path: Path) -> None:
    where = f"{store.url}/{ref.key}"
    try:
        store.get_to_file(ref.key, path, offset=ref.offset, length=ref.size)
    except ObjectNotFound as error:
        raise CorruptState("object of the snapshot is missing", where, _ADVICE) from error
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise LocalDiskError(f"cannot read local file: path={path} error={error}") from error
    if digest != ref.sha256:
        raise CorruptState("object of the snapshot does not match its checksum", where, _ADVICE)
