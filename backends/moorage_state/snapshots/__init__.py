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
    Retire,
    Run,
    Savepoint,
    Unknown,
    decode_record,
    encode_record,
)
from moorage_state.snapshots.heartbeat import LOCK_KEY, HeartbeatLock
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
    pack_size,
    private_key,
    private_pack_key,
    run_token,
    shared_key,
    shared_pack_key,
)
from moorage_state.snapshots.locking import DirectoryLock, LockHolder
from moorage_state.snapshots.log import AdoptionNeeded, LineageLog, LogWriter, NotOwner
from moorage_state.snapshots.manifest import (
    MANIFEST_FORMAT,
    MAX_INLINE_BYTES,
    FileRef,
    Manifest,
    OperatorState,
    OperatorStateMeta,
    RangeHandle,
    StateMeta,
    decode_manifest,
    encode_manifest,
    manifest_digest,
    object_keys,
)
from moorage_state.snapshots.packs import worn_packs
from moorage_state.snapshots.retention import Retirement, victims
from moorage_state.snapshots.run_lock import RunLock, acquire_lock
from moorage_state.snapshots.savepoints import SavepointConflict, SavepointStore, savepoint_key
from moorage_state.snapshots.sweep import AGE_FLOOR, Swept, UnderWay, find_garbage, garbage, sweep

__all__ = [
    "AGE_FLOOR",
    "LOCK_KEY",
    "LOG_FORMAT",
    "MANIFEST_FORMAT",
    "MAX_INLINE_BYTES",
    "AdoptionNeeded",
    "Checkpoint",
    "CheckpointStore",
    "DirectoryLock",
    "Entry",
    "Fence",
    "FileRef",
    "HeartbeatLock",
    "LineageLog",
    "Loaded",
    "LockHolder",
    "LogWriter",
    "Manifest",
    "NotOwner",
    "OperatorState",
    "OperatorStateMeta",
    "Owner",
    "RangeHandle",
    "Record",
    "Released",
    "RestorePoint",
    "Retire",
    "Retirement",
    "Run",
    "RunLock",
    "Savepoint",
    "SavepointConflict",
    "SavepointStore",
    "StateMeta",
    "Swept",
    "UnderWay",
    "Unknown",
    "Verify",
    "acquire_lock",
    "ancestors",
    "checkpoint_id_of",
    "checkpoint_path",
    "current_fence",
    "current_owner",
    "decode_manifest",
    "decode_record",
    "encode_manifest",
    "encode_record",
    "find_garbage",
    "garbage",
    "is_released",
    "log_key",
    "manifest_digest",
    "manifest_key",
    "next_checkpoint_id",
    "object_keys",
    "pack_size",
    "private_key",
    "private_pack_key",
    "restore_point",
    "restore_points",
    "retained",
    "run_token",
    "savepoint_key",
    "shared_key",
    "shared_pack_key",
    "sweep",
    "verify_files",
    "victims",
    "worn_packs",
]
