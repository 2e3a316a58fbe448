"""Checkpoints as a whole: completing, finding, verifying and retiring them.

Called by the checkpoint coordinator in the driver, and by whatever lists or picks restore points.
It knows manifests and the log, not how a range's files are made or used.
"""

import hashlib
import tempfile
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import takewhile
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple

from moorage_state import failpoints
from moorage_state.errors import (
    AlreadyExists,
    Bug,
    CorruptState,
    MoorageError,
    ObjectNotFound,
    UserError,
)
from moorage_state.snapshots.deletion import garbage_of
from moorage_state.snapshots.entries import Checkpoint, Entry, Retire
from moorage_state.snapshots.history import (
    Retirement,
    current_owner,
    kept_of,
    next_checkpoint_id,
    restore_points,
    retained,
)
from moorage_state.snapshots.log import LogWriter
from moorage_state.snapshots.manifest import (
    FileRef,
    Manifest,
    RangeHandle,
    Root,
    SnapshotRoot,
    decode_snapshot,
    encode_manifest,
    manifest_digest,
    object_keys,
)
from moorage_state.snapshots.object_keys import (
    checkpoint_id_of,
    checkpoint_path,
    is_shared_key,
    is_state_key,
    manifest_key,
    pack_size,
)
from moorage_state.snapshots.parts import references_of, with_files
from moorage_state.stores import ObjectStore, in_parallel, not_deleted, put_once

Verify = Literal["manifest", "sizes", "hashes"]
"""How far to look before trusting a checkpoint: its manifest; that every file is there with its
size; or every byte."""

_ADVICE = "restore an older checkpoint, or allow an older one to take its place"

_THREADS = 16

_DELETES_PER_LOOK = 1000
"""What goes in one request."""


class Loaded(NamedTuple):
    """A restore point that can be used.

    `warnings` are for people; not empty when an older checkpoint took the place of the newest.
    """

    manifest: SnapshotRoot
    warnings: list[str]


class CheckpointStore:
    """The checkpoints in one checkpoint directory."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._manifests: dict[int, SnapshotRoot] = {}
        self._leftovers: set[int] | None = None
        # That of the run before this one may still be at it.
        self._retiring = threading.Lock()

    @property
    def objects(self) -> ObjectStore:
        """The checkpoint directory."""
        return self._store

    def next_id(self, entries: Iterable[Entry]) -> int:
        """Return an id above all in the log and all that an unfinished checkpoint left behind."""
        highest = next_checkpoint_id(entries) - 1
        for info in self._store.list("chk-"):
            found = checkpoint_id_of(info.key.partition("/")[0])
            highest = max(highest, found or 0)
        return highest + 1

    def complete(
        self, writer: LogWriter, manifest: SnapshotRoot, completed_at: datetime
    ) -> Checkpoint:
        """Write the manifest and then the log entry, from which on the checkpoint exists.

        Calling it again with the same manifest after StoreUnavailable goes on where it stopped.

        Raises:
            Fenced: another writer took over; the checkpoint does not exist.
            AlreadyExists: another manifest lies under this id, left by a writer that was fenced
                off before its log entry; take the next id.
            StoreUnavailable: the checkpoint may exist: delete nothing, call again.
        """
        data = encode_manifest(manifest)
        writer.settle()
        digest = manifest_digest(data)
        done = _same_id(writer, manifest, digest)
        if done is not None:
            return done
        key = manifest_key(manifest.checkpoint_id)
        failpoints.hit("complete.before_manifest")
        try:
            put_once(self._store, key, data)
        except AlreadyExists:
            # A later writer's? Then this one has nothing to go on with.
            writer.refresh()
            raise
        failpoints.hit("complete.after_manifest")
        entry = Checkpoint(
            manifest.fence,
            manifest.run,
            manifest.checkpoint_id,
            key,
            digest,
            manifest.epoch,
            completed_at,
        )
        writer.append(entry)
        failpoints.hit("complete.after_entry")
        return entry

    def load(self, checkpoint: Checkpoint) -> Manifest:
        """Return the manifest that the log entry names, with all files of its parts.

        Raises CorruptState if it is another, or a part is missing or damaged.
        """
        manifest = self.load_root(checkpoint)
        return with_files(self._store, manifest) if isinstance(manifest, Root) else manifest

    def load_root(self, checkpoint: Checkpoint) -> SnapshotRoot:
        """Return what lies under the manifest's key alone. Raises CorruptState if it is another."""
        path = f"{self._store.url}/{checkpoint.manifest_key}"
        try:
            data = self._store.get(checkpoint.manifest_key)
        except ObjectNotFound as error:
            raise CorruptState("manifest is missing", path, _ADVICE) from error
        manifest = decode_snapshot(data, path)
        if manifest_digest(data) != checkpoint.manifest_digest:
            raise CorruptState("manifest is not the one that the log names", path, _ADVICE)
        return manifest

    def existing(self, entries: Iterable[Entry], checkpoint_id: int) -> Checkpoint:
        """Return the entry of a retained checkpoint. Raises UserError if there is none."""
        existing = retained(entries)
        for checkpoint in existing:
            if checkpoint.checkpoint_id == checkpoint_id:
                return checkpoint
        names = ", ".join(checkpoint_path(c.checkpoint_id) for c in existing) or "none"
        raise UserError(
            f"no such checkpoint: store={self._store.url} path={checkpoint_path(checkpoint_id)}; "
            f"retained are: {names}"
        )

    def load_id(self, entries: Iterable[Entry], checkpoint_id: int) -> Manifest:
        """Return the manifest of a retained checkpoint with all files; see `existing`, `load`."""
        return self.load(self.existing(entries, checkpoint_id))

    def load_latest(
        self,
        entries: Sequence[Entry],
        max_fallback_age: timedelta | None = None,
        verify: Verify = "sizes",
        damaged: Mapping[int, CorruptState] = MappingProxyType({}),
    ) -> Loaded | None:
        """Return the restore point, verified; None if the lineage may start empty.

        When the newest checkpoint is damaged, the next older valid one of the same timeline takes
        its place if it is at most `max_fallback_age` older (None: never); a checkpoint that a
        person chose is never replaced.

        Args:
            damaged: what was found out of checkpoints before, such as by who restored one.

        Raises:
            CorruptState: the restore point is damaged and nothing may take its place.
            UserError: see `restore_point`; or the point lies outside of this store.
            StoreUnavailable: the store does not answer. Never a reason to take an older one.
        """
        points = restore_points(entries)
        if not points:
            return None
        newest = points[0]
        if newest.checkpoint is None:
            raise UserError(
                f"restore point is no checkpoint of this lineage: store={self._store.url} "
                f"path={newest.path}; name one that is in its log"
            )
        owner = current_owner(entries)
        lineage = owner.lineage if owner is not None else ""
        try:
            return Loaded(self._load_verified(newest.checkpoint, lineage, verify, damaged), [])
        except CorruptState as error:
            if newest.explicit:
                raise
            older = [p.checkpoint for p in points[1:] if p.checkpoint is not None]
            load = partial(self._load_verified, lineage=lineage, verify=verify, damaged=damaged)
            return _fall_back(newest.checkpoint, error, older, max_fallback_age, load)

    def retire(
        self,
        writer: LogWriter,
        keep: int | None,
        *,
        pinned: Collection[int] = (),
        pending: Iterable[RangeHandle] = (),
        entries: Sequence[Entry] | None = None,
    ) -> Retirement:
        """Retire all but `kept_of` in the log, then delete what only those need; return what was.

        Takes up deletions that an earlier process did not finish. Checkpoints may begin and
        complete meanwhile, provided that `pinned`, `pending` and `entries` are of one moment, at
        which no upload ran whose files are not among `pending` and whose base was not `pinned`.

        Args:
            entries: the log at that moment; by default it is now.

        Raises:
            Fenced: another writer took over; nothing more is retired or deleted.
            Retryable, UserError: some objects may be left; the next retirement takes them up.
        """
        with self._retiring:
            # An entry in doubt may be the one that makes a checkpoint exist.
            writer.settle()
            entries = writer.entries if entries is None else entries
            return self._retire(writer, entries, keep, pinned, pending)

    def _retire(
        self,
        writer: LogWriter,
        entries: Sequence[Entry],
        keep: int | None,
        pinned: Collection[int],
        pending: Iterable[RangeHandle],
    ) -> Retirement:
        if self._leftovers is None:
            self._leftovers = self._find_leftovers(entries)
        roots = self._readable(entries, self._leftovers)
        # Of what cannot be read nobody knows what it references: that is a sweep's. It may be the
        # manifest of a fenced writer, put late where this one had deleted a retired one's.
        self._leftovers.intersection_update(roots)
        kept = kept_of(entries, keep, pinned)
        retirement = self._retirement(entries, roots, kept, list(pending), job_ends=keep is None)
        retired = {e.checkpoint_id for e in writer.entries if isinstance(e, Retire)}
        for checkpoint_id in retirement.checkpoint_ids:
            if checkpoint_id not in retired:
                failpoints.hit("retire.before_entry")
                writer.append(Retire(writer.fence, checkpoint_id))
                failpoints.hit("retire.after_entry")
            self._leftovers.add(checkpoint_id)

        def look() -> None:
            writer.refresh()
            failpoints.hit("retire.before_delete")

        failed = delete_state(self._store, retirement.keys, look)
        failpoints.hit("retire.after_delete")
        for key in retirement.keys:
            deleted = checkpoint_id_of(key)
            if deleted is not None and not failed:
                self._leftovers.discard(deleted)
                self._manifests.pop(deleted, None)
        if failed:
            raise not_deleted(self._store, failed)
        return retirement

    def _retirement(
        self,
        entries: Sequence[Entry],
        roots: Mapping[int, SnapshotRoot],
        kept: frozenset[int],
        pending: Sequence[RangeHandle],
        *,
        job_ends: bool,
    ) -> Retirement:
        """What goes with all but the kept ones: by the lists of roots, else by all files."""
        # What one that cannot be read references is unknown, and an older one may have to take its
        # place.
        if not kept <= roots.keys():
            return Retirement()
        ids = tuple(
            c.checkpoint_id for c in reversed(retained(entries)) if c.checkpoint_id not in kept
        )
        listed = None if pending else garbage_of(roots, kept)
        shared: frozenset[str] | None
        if job_ends and not kept:
            # No sweep follows, and nothing is referenced any more.
            found = (info.key for info in self._store.list("shared/"))
            shared = frozenset(filter(is_state_key, found))
        elif listed is None:
            shared = self._unneeded(roots, kept)
        else:
            whole = {one: roots[one] for one in listed.whole}
            shared = listed.keys.union(self._unneeded(whole, ()) or ())
        if shared is None:
            return Retirement()
        shared -= object_keys(pending)
        going = [checkpoint_id for checkpoint_id in sorted(roots) if checkpoint_id not in kept]
        own = [key for one in going for key in self._own(one)]
        # A root is there for as long as anything else is, so that a deletion can be taken up again.
        last = (manifest_key(one) for one in going)
        return Retirement(ids, (*sorted(shared), *own, *last))

    def _own(self, checkpoint_id: int) -> list[str]:
        """The objects of one checkpoint alone, without its manifest."""
        path = checkpoint_path(checkpoint_id)
        keys = (info.key for info in self._store.list(f"{path}/"))
        return [key for key in keys if is_state_key(key) and checkpoint_id_of(key) is None]

    def _unneeded(
        self, roots: Mapping[int, SnapshotRoot], kept: Collection[int]
    ) -> frozenset[str] | None:
        """The shared objects that no kept checkpoint's files lie in, and another's do.

        None where the parts of a kept one cannot be read.
        """
        found: set[str] = set()
        # Those that are kept last, so that no more than what may go is ever remembered.
        for checkpoint_id, root in sorted(roots.items(), key=lambda one: one[0] in kept):
            try:
                for keys in references_of(self._store, root):
                    if checkpoint_id in kept:
                        found.difference_update(keys)
                    else:
                        found.update(filter(is_shared_key, keys))
            except (CorruptState, UserError):
                if checkpoint_id in kept:
                    return None
                # Its deletion had come to its own objects, or else a sweep finds what it needed.
        return frozenset(found)

    def _load_verified(
        self,
        checkpoint: Checkpoint,
        lineage: str,
        verify: Verify,
        damaged: Mapping[int, CorruptState],
    ) -> SnapshotRoot:
        if checkpoint.checkpoint_id in damaged:
            raise damaged[checkpoint.checkpoint_id]
        manifest = self.load_root(checkpoint)
        # Who slept while its lineage was deleted may have written into the log that followed.
        if lineage and manifest.lineage != lineage:
            raise CorruptState(
                f"checkpoint is of another lineage: store={self._store.url} "
                f"lineage={manifest.lineage} own={lineage}",
                path=checkpoint.manifest_key,
                advice="end the driver that wrote it, and restore an older checkpoint",
            )
        if verify != "manifest":
            whole = with_files(self._store, manifest) if isinstance(manifest, Root) else manifest
            verify_files(self._store, whole, full=verify == "hashes")
        return manifest

    def _find_leftovers(self, entries: Iterable[Entry]) -> set[int]:
        """Return retired checkpoints whose manifest is still there."""
        retired = {entry.checkpoint_id for entry in entries if isinstance(entry, Retire)}
        present = (checkpoint_id_of(info.key) for info in self._store.list("chk-"))
        return retired.intersection(found for found in present if found is not None)

    def _readable(
        self, entries: Iterable[Entry], retired: Collection[int]
    ) -> dict[int, SnapshotRoot]:
        """Return the roots of all retained checkpoints and of these retired ones."""
        manifests: dict[int, SnapshotRoot] = {}
        live = {checkpoint.checkpoint_id for checkpoint in retained(entries)}
        for entry in entries:
            if isinstance(entry, Checkpoint) and entry.checkpoint_id in live.union(retired):
                try:
                    manifests[entry.checkpoint_id] = self._load_once(entry)
                except (CorruptState, UserError):
                    continue
        return manifests

    def _load_once(self, checkpoint: Checkpoint) -> SnapshotRoot:
        """Like `load_root`, remembered."""
        # Manifests never change, and every retirement asks for all of them.
        known = self._manifests.get(checkpoint.checkpoint_id)
        if known is None:
            known = self._manifests[checkpoint.checkpoint_id] = self.load_root(checkpoint)
        return known


def _fall_back(
    newest: Checkpoint,
    damage: CorruptState,
    older: Sequence[Checkpoint],
    max_age: timedelta | None,
    load: Callable[[Checkpoint], SnapshotRoot],
) -> Loaded:
    warnings = [_damaged(newest, damage)]
    for checkpoint in older:
        age = newest.completed_at - checkpoint.completed_at
        path = checkpoint_path(checkpoint.checkpoint_id)
        if max_age is None or age > max_age:
            allowed = "no older one may take its place" if max_age is None else f"max={max_age}"
            raise CorruptState(
                f"{damage.message}; next older is {path}, older by {age}, {allowed}",
                damage.path,
                damage.advice,
            ) from damage
        try:
            manifest = load(checkpoint)
        except CorruptState as error:
            warnings.append(_damaged(checkpoint, error))
            continue
        warnings.append(f"restoring older checkpoint: path={path} older_by={age}")
        return Loaded(manifest, warnings)
    raise CorruptState(
        f"{damage.message}; no older checkpoint is usable", damage.path, damage.advice
    ) from damage


def delete_state(
    store: ObjectStore, keys: Sequence[str], look: Callable[[], object]
) -> dict[str, MoorageError]:
    """Delete objects of checkpoints; returns what failed, by key.

    `look` is called before each request, and raises when this process may not delete any more.
    """
    manifests = [key for key in keys if checkpoint_id_of(key) is not None]
    shared = [key for key in keys if is_shared_key(key)]
    own = [key for key in keys if checkpoint_id_of(key) is None and not is_shared_key(key)]
    failed: dict[str, MoorageError] = {}
    # No manifest, nor a part of one, goes while a file is left that the next one finds by it.
    for group in (shared, own, manifests):
        for start in range(0, 0 if failed else len(group), _DELETES_PER_LOOK):
            look()
            failed |= store.delete_many(group[start : start + _DELETES_PER_LOOK])
    return failed


def verify_files(
    store: ObjectStore,
    manifest: Manifest,
    *,
    full: bool = False,
    is_late: Callable[[], bool] = lambda: False,
) -> tuple[int, int]:
    """Check that every object of the checkpoint is there with its size, and with `full` its bytes.

    Args:
        is_late: whether no further object is to be looked at.

    Returns:
        How many objects were looked at, and how many there are.

    Raises CorruptState naming an object that is not as it should be.
    """
    slices: dict[str, dict[tuple[int, int, str], FileRef]] = {}
    for file in manifest.files:
        if file.inline is not None:
            _check_digest(file, hashlib.sha256(file.inline).hexdigest(), "inline")
        else:
            slices.setdefault(file.key, {})[file.offset, file.size, file.sha256] = file
    # A few files at a time: a checkpoint may be larger than this machine's disk.
    with tempfile.TemporaryDirectory(prefix="moorage-verify-") as folder:

        def check(key: str) -> None:
            info = store.head(key)
            if info is None:
                raise CorruptState(
                    "file of the checkpoint is missing", f"{store.url}/{key}", _ADVICE
                )
            for file in slices[key].values():
                _check_size(store, file, info.size)
                if full:
                    _check_bytes(store, file, Path(folder, f"{threading.get_ident()}"))

        keys = takewhile(lambda _: not is_late(), slices)
        looked = in_parallel((partial(check, key) for key in keys), _THREADS, "verify")
    return len(looked), len(slices)


def _check_size(store: ObjectStore, file: FileRef, found: int) -> None:
    packed = pack_size(file.key)
    expected = file.offset + file.size if packed is None else packed
    if found != expected or file.offset + file.size > found:
        raise CorruptState(
            f"file of the checkpoint has {found} bytes, not {expected}",
            f"{store.url}/{file.key}",
            _ADVICE,
        )


def _check_bytes(store: ObjectStore, file: FileRef, scratch: Path) -> None:
    path = f"{store.url}/{file.key}"
    try:
        store.get_to_file(file.key, scratch, offset=file.offset, length=file.size)
    except ObjectNotFound as error:
        raise CorruptState("file of the checkpoint is missing", path, _ADVICE) from error
    with scratch.open("rb") as copy:
        digest = hashlib.file_digest(copy, "sha256").hexdigest()
    _check_digest(file, digest, path)


def _check_digest(file: FileRef, digest: str, path: str) -> None:
    if digest != file.sha256:
        raise CorruptState("file of the checkpoint does not match its checksum", path, _ADVICE)


def _damaged(checkpoint: Checkpoint, error: CorruptState) -> str:
    return (
        f"checkpoint is damaged: path={checkpoint_path(checkpoint.checkpoint_id)} "
        f"completed_at={checkpoint.completed_at.isoformat()} problem={error.message!r} "
        f"object={error.path}"
    )


def _same_id(writer: LogWriter, manifest: SnapshotRoot, digest: str) -> Checkpoint | None:
    """Return the log's entry for this very manifest, if it is there; check that it may be added."""
    if (manifest.fence, manifest.lineage) != (writer.fence, writer.lineage):
        raise Bug(
            f"manifest belongs to another writer: fence={manifest.fence} "
            f"lineage={manifest.lineage} own_fence={writer.fence} own_lineage={writer.lineage}"
        )
    entries = writer.entries
    for entry in entries:
        if isinstance(entry, Checkpoint) and entry.checkpoint_id == manifest.checkpoint_id:
            if entry.manifest_digest == digest:
                return entry
            raise Bug(f"checkpoint id is taken: checkpoint={manifest.checkpoint_id}")
    # A savepoint with a higher id may have overtaken it.
    taken = (e.checkpoint_id for e in entries if isinstance(e, Checkpoint | Retire))
    if manifest.checkpoint_id <= max(taken, default=0):
        raise Bug(f"checkpoint ids must grow: checkpoint={manifest.checkpoint_id}")
    return None
