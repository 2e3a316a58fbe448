"""Snapshots: the log, the manifests and the checkpoints of a lineage.

Decides who may write to a lineage, when a checkpoint exists, what a start restores from, and when
objects may be deleted. Called by the driver (which writes), and by the operator and the command
line (which read). Must not know RocksDB, Arrow, Spark or Kubernetes; what lies in the files of a
range, or in the opaque parts of a manifest, is not its business.
"""

from moorage_state.snapshots.checkpoints import CheckpointStore, Loaded, Verify, verify_files
from moorage_state.snapshots.entries import (
    LOG_FORMAT,
    Checkpoint,
    Entry,
    Fence,
    Owner,
    Record,
    Released,
    Reserved,
    Retire,
    Run,
    decode_record,
    encode_record,
)
from moorage_state.snapshots.history import (
    RestorePoint,
    ancestors,
    current_fence,
    current_owner,
    is_released,
    next_checkpoint_id,
    restore_point,
    restore_points,
    retained,
)
from moorage_state.snapshots.layout import (
    checkpoint_id_of,
    checkpoint_path,
    log_key,
    manifest_key,
    private_key,
    run_token,
    shared_key,
)
from moorage_state.snapshots.locking import DirectoryLock, LockHolder
from moorage_state.snapshots.log import LineageLog, LogWriter
from moorage_state.snapshots.manifest import (
    MANIFEST_FORMAT,
    FileRef,
    Manifest,
    OperatorState,
    RangeHandle,
    StateMeta,
    decode_manifest,
    encode_manifest,
    manifest_digest,
)
from moorage_state.snapshots.retention import Retirement, victims

__all__ = [
    "LOG_FORMAT",
    "MANIFEST_FORMAT",
    "Checkpoint",
    "CheckpointStore",
    "DirectoryLock",
    "Entry",
    "Fence",
    "FileRef",
    "LineageLog",
    "Loaded",
    "LockHolder",
    "LogWriter",
    "Manifest",
    "OperatorState",
    "Owner",
    "RangeHandle",
    "Record",
    "Released",
    "Reserved",
    "RestorePoint",
    "Retire",
    "Retirement",
    "Run",
    "StateMeta",
    "Verify",
    "ancestors",
    "checkpoint_id_of",
    "checkpoint_path",
    "current_fence",
    "current_owner",
    "decode_manifest",
    "decode_record",
    "encode_manifest",
    "encode_record",
    "is_released",
    "log_key",
    "manifest_digest",
    "manifest_key",
    "next_checkpoint_id",
    "private_key",
    "restore_point",
    "restore_points",
    "retained",
    "run_token",
    "shared_key",
    "verify_files",
    "victims",
]
