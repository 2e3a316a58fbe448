"""Snapshots: the log, the manifests and the checkpoints of a lineage.

Decides who may write to a lineage, when a checkpoint exists, what a start restores from, and when
objects may be deleted. Called by the driver (which writes), and by the operator and the command
line (which read). Must not know RocksDB, Arrow, Spark or Kubernetes; what lies in the files of a
range, or in the opaque parts of a manifest, is not its business.
"""

from moorage_state.snapshots.checkpoints import CheckpointStore as CheckpointStore
from moorage_state.snapshots.checkpoints import Verify as Verify
from moorage_state.snapshots.checkpoints import verify_files as verify_files
from moorage_state.snapshots.entries import Checkpoint as Checkpoint
from moorage_state.snapshots.entries import Entry as Entry
from moorage_state.snapshots.entries import Fence as Fence
from moorage_state.snapshots.entries import Finished as Finished
from moorage_state.snapshots.entries import Forgotten as Forgotten
from moorage_state.snapshots.entries import Owner as Owner
from moorage_state.snapshots.entries import Record as Record
from moorage_state.snapshots.entries import Released as Released
from moorage_state.snapshots.entries import Rescaled as Rescaled
from moorage_state.snapshots.entries import Retire as Retire
from moorage_state.snapshots.entries import Run as Run
from moorage_state.snapshots.entries import Savepoint as Savepoint
from moorage_state.snapshots.entries import Unknown as Unknown
from moorage_state.snapshots.history import Line as Line
from moorage_state.snapshots.history import Retirement as Retirement
from moorage_state.snapshots.history import ancestors as ancestors
from moorage_state.snapshots.history import finished_with as finished_with
from moorage_state.snapshots.history import is_announced as is_announced
from moorage_state.snapshots.history import parallelism_of as parallelism_of
from moorage_state.snapshots.history import rescaled as rescaled
from moorage_state.snapshots.history import restore_point as restore_point
from moorage_state.snapshots.history import retained as retained
from moorage_state.snapshots.lineage_log import LineageLog as LineageLog
from moorage_state.snapshots.log import AdoptionNeeded as AdoptionNeeded
from moorage_state.snapshots.log import LogWriter as LogWriter
from moorage_state.snapshots.log import NotOwner as NotOwner
from moorage_state.snapshots.manifest import MAX_INLINE_BYTES as MAX_INLINE_BYTES
from moorage_state.snapshots.manifest import FileRef as FileRef
from moorage_state.snapshots.manifest import Manifest as Manifest
from moorage_state.snapshots.manifest import Materialized as Materialized
from moorage_state.snapshots.manifest import OperatorParts as OperatorParts
from moorage_state.snapshots.manifest import OperatorState as OperatorState
from moorage_state.snapshots.manifest import OperatorStateMeta as OperatorStateMeta
from moorage_state.snapshots.manifest import PartEntry as PartEntry
from moorage_state.snapshots.manifest import PartRef as PartRef
from moorage_state.snapshots.manifest import RangeEntry as RangeEntry
from moorage_state.snapshots.manifest import RangeHandle as RangeHandle
from moorage_state.snapshots.manifest import RangeInPart as RangeInPart
from moorage_state.snapshots.manifest import Root as Root
from moorage_state.snapshots.manifest import SnapshotRoot as SnapshotRoot
from moorage_state.snapshots.manifest import SourceText as SourceText
from moorage_state.snapshots.manifest import SourceTexts as SourceTexts
from moorage_state.snapshots.manifest import StateMeta as StateMeta
from moorage_state.snapshots.manifest import decode_snapshot as decode_snapshot
from moorage_state.snapshots.manifest import encode_manifest as encode_manifest
from moorage_state.snapshots.manifest import manifest_digest as manifest_digest
from moorage_state.snapshots.manifest import metas_of as metas_of
from moorage_state.snapshots.manifest import object_keys as object_keys
from moorage_state.snapshots.object_keys import checkpoint_id_of as checkpoint_id_of
from moorage_state.snapshots.object_keys import checkpoint_path as checkpoint_path
from moorage_state.snapshots.object_keys import log_key as log_key
from moorage_state.snapshots.object_keys import manifest_key as manifest_key
from moorage_state.snapshots.object_keys import pack_size as pack_size
from moorage_state.snapshots.object_keys import part_key as part_key
from moorage_state.snapshots.object_keys import private_key as private_key
from moorage_state.snapshots.object_keys import private_pack_key as private_pack_key
from moorage_state.snapshots.object_keys import run_token as run_token
from moorage_state.snapshots.object_keys import shared_key as shared_key
from moorage_state.snapshots.object_keys import shared_pack_key as shared_pack_key
from moorage_state.snapshots.parts import worn_packs as worn_packs
from moorage_state.snapshots.run_lock import LockHolder as LockHolder
from moorage_state.snapshots.run_lock import RunLock as RunLock
from moorage_state.snapshots.run_lock import acquire_lock as acquire_lock
from moorage_state.snapshots.savepoints import SavepointConflict as SavepointConflict
from moorage_state.snapshots.savepoints import SavepointStore as SavepointStore
from moorage_state.snapshots.savepoints import savepoint_key as savepoint_key
from moorage_state.snapshots.source_texts import Cutter as Cutter
from moorage_state.snapshots.source_texts import CutText as CutText
from moorage_state.snapshots.source_texts import store_texts as store_texts
from moorage_state.snapshots.source_texts import with_local as with_local
from moorage_state.snapshots.source_texts import with_texts as with_texts
from moorage_state.snapshots.sweep import AGE_FLOOR as AGE_FLOOR
from moorage_state.snapshots.sweep import Swept as Swept
from moorage_state.snapshots.sweep import UnderWay as UnderWay
from moorage_state.snapshots.sweep import find_garbage as find_garbage
from moorage_state.snapshots.sweep import garbage as garbage
from moorage_state.snapshots.sweep import sweep as sweep
