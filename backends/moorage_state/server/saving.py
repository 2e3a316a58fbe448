"""Savepoints: the snapshots of a server's ranges come into a directory of their own.

Decides where files lie below a savepoint's directory; nothing outside of it is referenced, so the
directory can be copied elsewhere and restored there. Called by `RangeHost`, beside running epochs.
"""

import uuid
from collections.abc import Sequence
from functools import partial

from moorage_state.canonicalspec import CanonicalSpec
from moorage_state.progress import bytes_below, watching
from moorage_state.server.api import Uploaded, UploadLimits
from moorage_state.server.checkpointing import Snapshots
from moorage_state.server.databases import Databases
from moorage_state.server.packing import LocalFile
from moorage_state.server.uploading import UploadPart, upload
from moorage_state.snapshots import RangeHandle, savepoint_key
from moorage_state.stores import ObjectStore, check_key

__all__ = ["copy_native", "export"]


class _SavepointNames:
    """In a savepoint's directory, which nobody else writes to."""

    shares = False

    def __init__(self) -> None:
        self._id = uuid.uuid4().hex

    def pack(self, number: int, size: int, *, shared: bool) -> str:
        """Of an object with several small files."""
        kind = "tables" if shared else "files"
        return check_key(f"packs/{kind}-{self._id}-{number}-{size}")

    def alone(self, snapshots: Snapshots, file: LocalFile) -> str:
        """Of an object that is one file."""
        spec = snapshots.spec
        return savepoint_key(spec.uid, spec.start, spec.end, file.path.name)


def copy_native(
    parts: Sequence[Snapshots], run: str, checkpoint_id: int, store: ObjectStore
) -> Uploaded:
    """All files of the snapshots, in the backend's own format; see `StateApi.save_many`."""
    whole = [UploadPart(snapshots, []) for snapshots in parts]
    return upload(whole, run, checkpoint_id, store, UploadLimits(), names=_SavepointNames())


def export(
    parts: Sequence[Snapshots],
    specs: Sequence[CanonicalSpec],
    checkpoint_id: int,
    store: ObjectStore,
    databases: Databases,
) -> Uploaded:
    """The snapshots in the canonical format, one range after the other; see `StateApi.save_many`.

    One after the other, because each is written to the local volume first.
    """
    # Imports Arrow, without which a server starts in a third of the time.
    from moorage_state.canonical import export_snapshot

    handles: list[RangeHandle] = []
    for snapshots, spec in zip(parts, specs, strict=True):
        scratch = snapshots.scratch(checkpoint_id)
        with watching(partial(bytes_below, scratch)), snapshots.uploading(checkpoint_id) as taken:
            handles.append(
                export_snapshot(
                    # State in memory as it is, files that were written as a directory.
                    taken.path if taken.pending is None else taken.pending.view(),
                    spec,
                    scratch,
                    store,
                    open_copy=databases.open_copy,
                    digest=taken.version.digest,
                    backend_uuid=snapshots.backend_uuid,
                    stopped=taken.cancel.is_set,
                )
            )
    files = [file for handle in handles for file in handle.files]
    return Uploaded(handles, len(files), sum(file.size for file in files), 0)
