"""What a start begins from: the log's newest point, or the one a person named.

Decides which checkpoint is restored and refuses what would lose or misread state. Called by the
driver after it has claimed the fence.
"""

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import pyspark
from msgspec.structs import replace

from moorage.api.graph import JobGraph
from moorage.driver.manifests import SPARK_VERSION, STATELESS, UID_MAPPING, WINDOWS
from moorage.driver.refusals import (
    RestorePointChanged,
    RestorePointCorrupt,
    RestorePointIncompatible,
    RestorePointNotFound,
)
from moorage.driver.settings import JobSettings, RestorePolicy, chosen_backend
from moorage.engine.sparklog import SparkLog, lay
from moorage.state.snapshot_path import locate
from moorage_state.coordinator import check_all_restored
from moorage_state.errors import CorruptState, NewerFormat, StoreDenied, UserError
from moorage_state.keygroups import resolved_max_parallelism
from moorage_state.server.databases import Databases, check_owner, owner_of
from moorage_state.snapshots import (
    Checkpoint,
    CheckpointStore,
    Entry,
    Manifest,
    OperatorParts,
    OperatorState,
    Root,
    Run,
    SnapshotRoot,
    checkpoint_id_of,
    checkpoint_path,
    finished_with,
    manifest_digest,
    manifest_key,
    may_have_had,
    restore_point,
    retained,
    verify_files,
    with_files,
    with_texts,
)
from moorage_state.snapshots.savepoints import MANIFEST_KEY
from moorage_state.state_backends import job_max_state_size
from moorage_state.state_backends.state_backend import BUILT_IN
from moorage_state.stores import ObjectStore, open_store
from moorage_state.stores.addresses import child, parent_and_name, same_or_below, same_place
from moorage_state.tuning import default_options


@dataclass(frozen=True, slots=True)
class Choice:
    """A restore point; `manifest` is None for an empty start.

    Attributes:
        explicit: a person chose it.
        address: of a savepoint, or of a checkpoint of another lineage; empty for one of this.
        store_url: the store that the keys of such a manifest are of.
        digest: of the manifest of a savepoint as it lies there.
        finished: the last checkpoint of a job that finished and whose checkpoints are deleted.
    """

    manifest: SnapshotRoot | None
    explicit: bool
    warnings: tuple[str, ...] = ()
    address: str = ""
    store_url: str = ""
    digest: str = ""
    finished: Checkpoint | None = None

    @property
    def path(self) -> str | None:
        """How the log names it."""
        if self.address:
            return self.address
        return checkpoint_path(self.manifest.checkpoint_id) if self.manifest else None


def choose(
    store: CheckpointStore,
    entries: Sequence[Entry],
    settings: JobSettings,
    damaged: Mapping[int, CorruptState] = MappingProxyType({}),
) -> Choice:
    """The restore point of this start; its files are looked at by who is about to read them.

    Args:
        damaged: checkpoints that could not be restored, and why.

    Raises:
        RestorePointNotFound: the named point is not there.
        RestorePointChanged: another one lies in its place.
        RestorePointIncompatible: it is not one for this job or this Moorage.
        RestorePointCorrupt: it is damaged and no older one may take its place.
        UserError: an empty start would drop state, or the store refuses.
        StoreUnavailable: the store does not answer.
    """
    with _corrupt_point():
        return _chosen(store, entries, settings, damaged)


def _chosen(
    store: CheckpointStore,
    entries: Sequence[Entry],
    settings: JobSettings,
    damaged: Mapping[int, CorruptState],
) -> Choice:
    policy = settings.restore
    if policy.mode != "Latest" and (policy.explicit or not _handled(entries, policy)):
        return _named(store, entries, policy, settings)
    if settings.bounded and (last := finished_with(entries)) and not retained(entries):
        return Choice(None, explicit=False, finished=last)
    if policy.mode == "Latest" and policy.path:
        _check_known(entries, settings)
    with _missing_point():
        newest = restore_point(entries)
    if newest is not None and newest.checkpoint is None:
        # A run began there and completed no checkpoint since.
        return _elsewhere(newest.path, settings, explicit=False)
    loaded = store.load_latest(entries, policy.max_fallback_age, "manifest", damaged)
    if loaded is None:
        return Choice(None, explicit=False)
    warnings = tuple(loaded.warnings)
    if policy.mode != "Latest":
        how = f"raise restore.nonce (now {policy.nonce})"
        if policy.order_id:
            how = f"it takes an order of another id (this is {policy.order_id})"
        sentence = (
            f"restore.mode {policy.mode} was followed by an earlier run; going on from the newest "
            f"checkpoint: to follow it again, {how}"
        )
        warnings = (*warnings, sentence)
    manifest = renamed(loaded.manifest, policy.uid_mapping)
    return Choice(manifest, explicit=False, warnings=warnings)


def _check_known(entries: Sequence[Entry], settings: JobSettings) -> None:
    """A directory that was emptied or set back, or is another server's: what is lost is told."""
    path = settings.restore.path
    _, name = parent_and_name(path) or ("", "")
    here = same_place(path, child(settings.checkpoint_dir, name))
    known = checkpoint_id_of(name) if here else None
    if known is None or may_have_had(entries, known):
        return
    there = next(iter(retained(entries)), None)
    newest = checkpoint_path(there.checkpoint_id) if there is not None else "none"
    raise RestorePointNotFound(
        f"the job has completed a checkpoint that its checkpointDir has never had: "
        f"checkpoint={checkpoint_path(known)} newest there={newest} "
        f"checkpointDir={settings.checkpoint_dir}; bring back what was deleted, or correct "
        f"state.s3.endpoint if that names another server; to go on without, raise restore.nonce "
        f"with mode Path and a point that is there, or with mode Empty and acknowledgeStateLoss"
    )


def _handled(entries: Sequence[Entry], policy: RestorePolicy) -> bool:
    """Whether an earlier start already followed this order, or the manifest's of this nonce."""
    followed = [entry for entry in entries if isinstance(entry, Run) and entry.explicit]
    if policy.order_id:
        return any(run.order_id == policy.order_id for run in followed)
    return any(run.restore_nonce == policy.nonce + 1 for run in followed)


def _named(
    store: CheckpointStore, entries: Sequence[Entry], policy: RestorePolicy, settings: JobSettings
) -> Choice:
    if policy.mode == "Empty":
        if not policy.acknowledge_state_loss and _has_state(entries):
            raise UserError(
                f"restore.mode is Empty, but the lineage has state: "
                f"checkpointDir={settings.checkpoint_dir}; to drop it set "
                f"restore.acknowledgeStateLoss: true, to keep it use mode Latest"
            )
        return Choice(None, explicit=True)
    if policy.mode != "Path":
        raise UserError(
            f"restore.mode {policy.mode} needs a cluster; here use mode Path with "
            f"path: chk-<id>, or --restore chk-<id>"
        )
    name = _name_in(settings, policy.path)
    checkpoint_id = checkpoint_id_of(name)
    if checkpoint_id is None:
        path = policy.path
        if settings.savepoint_dir and "/" not in path:
            path = settings.savepoint_url(path)
        return _elsewhere(path, settings, explicit=True)
    with _missing_point():
        entry = store.existing(entries, checkpoint_id)
        found = store.load_root(entry)
    _check_digest(settings, path=policy.path, digest=entry.manifest_digest)
    return Choice(renamed(found, policy.uid_mapping), explicit=True)


def _has_state(entries: Sequence[Entry]) -> bool:
    if retained(entries):
        return True
    try:
        return restore_point(entries) is not None
    except UserError:
        return False  # all of it was retired: nothing is left to lose


def _name_in(settings: JobSettings, path: str) -> str:
    """What remains of `path` below the checkpoint directory, if it is written as an address, too.

    As people are shown one: with how S3 is reached, or with characters that are quoted.
    """
    directory = settings.checkpoint_dir
    parent, name = parent_and_name(settings.reach(path)) or ("", "")
    if same_or_below(parent, directory) and same_or_below(directory, parent):
        return name
    plain = directory.partition("?")[0]
    for prefix in (plain, plain.removeprefix("file://")):
        path = path.removeprefix(f"{prefix}/")
    return path.strip("/")


def _elsewhere(path: str, settings: JobSettings, *, explicit: bool) -> Choice:
    """A savepoint, or a checkpoint of another lineage; it stays its owner's."""
    if "://" not in path and not path.startswith("/"):
        raise RestorePointNotFound(
            f"not a restore point: restore={path} checkpointDir={settings.checkpoint_dir}; write "
            f"chk-<id> for a checkpoint of this lineage, the name of a savepoint in the job's "
            f"savepointDir, or the address of its directory"
        )
    with _missing_point(path):
        snapshot = locate(settings.reach(path))
    if settings.restore.claim and snapshot.manifest.kind != "savepoint":
        raise RestorePointIncompatible(
            f"only a savepoint can be claimed: restore={path}; a checkpoint shares files with "
            f"others of its lineage: set restore.claimMode: NoClaim, or copy it first with "
            f"moorage snapshots copy"
        )
    objects = open_store(snapshot.store_url)
    digest = _digest_of(objects, snapshot.manifest)
    if explicit:
        _check_digest(settings, path=path, digest=digest)
    manifest = renamed(snapshot.manifest, settings.restore.uid_mapping)
    return Choice(
        manifest,
        explicit=explicit,
        address=snapshot.path,
        store_url=snapshot.store_url,
        digest=digest if manifest.kind == "savepoint" else "",
    )


def _digest_of(objects: ObjectStore, manifest: Manifest) -> str:
    """Of the bytes that lie there, whichever version of Moorage wrote them."""
    own = manifest_key(manifest.checkpoint_id)
    return manifest_digest(objects.get(MANIFEST_KEY if manifest.kind == "savepoint" else own))


def _check_digest(settings: JobSettings, *, path: str, digest: str) -> None:
    wanted = settings.restore.digest
    if wanted and digest != wanted:
        raise RestorePointChanged(
            f"another snapshot lies where the chosen one lay: path={path} digest={digest} "
            f"chosen={wanted}; choose again"
        )


def objects_seen(choice: Choice, own: ObjectStore, is_late: Callable[[], bool]) -> tuple[int, int]:
    """Look whether all objects that a point consists of are there with their sizes.

    Args:
        own: the store of the lineage.
        is_late: whether no further object is to be looked at.

    Returns:
        How many were looked at, and how many there are.

    Raises:
        RestorePointCorrupt: naming one that is not as it should be.
        StoreUnavailable: the store does not answer.
    """
    manifest = choice.manifest
    if manifest is None:
        return 0, 0
    with _corrupt_point():
        objects = open_store(choice.store_url) if choice.store_url else own
        whole = with_files(objects, manifest) if isinstance(manifest, Root) else manifest
        return verify_files(objects, whole, is_late=is_late)


@contextmanager
def _missing_point(path: str = "") -> Iterator[None]:
    """What cannot be found, or read by this Moorage; `path` is as a person wrote it."""
    try:
        yield
    except (StoreDenied, RestorePointNotFound):
        raise
    except NewerFormat as error:
        raise RestorePointIncompatible(*error.args) from error
    except UserError as error:
        if not path:
            raise RestorePointNotFound(*error.args) from error
        raise RestorePointNotFound(
            f"there is nothing to restore: restore={path}: {str(error).partition('; ')[0]}; see "
            f"what there is with moorage snapshots ls JOB.yaml, and name that"
        ) from error


@contextmanager
def _corrupt_point() -> Iterator[None]:
    try:
        yield
    except RestorePointCorrupt:
        raise
    except CorruptState as error:
        raise RestorePointCorrupt(error.message, error.path, error.advice) from error


def renamed(manifest: SnapshotRoot, mapping: Mapping[str, str]) -> SnapshotRoot:
    """The manifest with operators under the uids that the job has for them now.

    What the mapping had when the manifest was written is done there: twice would undo a swap.

    Raises:
        RestorePointIncompatible: two operators would get one uid.
    """
    done = manifest.extra.get(UID_MAPPING, {})
    mapping = {uid: new for uid, new in mapping.items() if done.get(uid) != new}
    if not mapping:
        return manifest
    operators: dict[str, OperatorState | OperatorParts] = {}
    for uid, state in manifest.operators.items():
        new = mapping.get(uid, uid)
        if new in operators:
            raise RestorePointIncompatible(
                f"restore.uidMapping gives two operators of the checkpoint one uid: uid={new} "
                f"checkpoint={sorted(manifest.operators)}; map each to another"
            )
        operators[new] = _under_uid(state, uid, new)
    # Those of operators stand among those of inputs, whose uids no mapping changes.
    watermarks = {
        mapping.get(uid, uid) if uid in manifest.operators else uid: time_ms
        for uid, time_ms in manifest.watermarks.items()
    }
    windows = manifest.extra.get(WINDOWS, {})
    extra = {**manifest.extra, WINDOWS: {mapping.get(uid, uid): w for uid, w in windows.items()}}
    return replace(manifest, operators=operators, watermarks=watermarks, extra=extra)


def _under_uid(
    state: OperatorState | OperatorParts, uid: str, new: str
) -> OperatorState | OperatorParts:
    if isinstance(state, OperatorParts):
        return replace(state, stored_uid=state.stored_uid or uid)
    return replace(state, subtasks=[replace(handle, uid=new) for handle in state.subtasks])


def adopting(settings: JobSettings, manifest: SnapshotRoot | None) -> JobSettings:
    """The settings with the key groups and the state backend of the snapshot, where none is set.

    Raises:
        RestorePointIncompatible: the job has more subtasks than the snapshot key groups.
        IllegalConfigurationError: that backend cannot have the job's settings.
    """
    if manifest is None:
        return settings
    settings = _with_backend_of(manifest, settings)
    if not settings.derives_max_parallelism:
        return settings
    try:
        found = resolved_max_parallelism(settings.parallelism, None, manifest.max_parallelism)
    except ValueError as error:
        raise RestorePointIncompatible(str(error)) from error
    return dataclasses.replace(settings, max_parallelism=found)


def _with_backend_of(manifest: SnapshotRoot, settings: JobSettings) -> JobSettings:
    """A default that has changed leaves a job with state its backend, and its storage."""
    options = settings.open_backend_options
    if options is None:
        return settings
    owners = {owner for _, owner in _owners(manifest)}
    backend, owner = settings.backend, Databases(settings.backend).owner
    if not owners <= {owner}:
        # A stranger's handle knows the identifier, which imports nothing: that is refused.
        owner = next((one for one in sorted(owners) if one in BUILT_IN), "")
        backend = chosen_backend(owner, options, settings.code) if owner else backend
    if not owners or not owner:
        return settings
    limit = job_max_state_size(owner, options, default_options(os.environ))
    return dataclasses.replace(settings, backend=backend, max_state_size=limit)


def check_settings(manifest: SnapshotRoot, settings: JobSettings) -> None:
    """Refuse what the manifest of the job alone shows: before Spark is started.

    Raises RestorePointIncompatible: naming what differs and what to do.
    """
    if manifest.max_parallelism != settings.max_parallelism:
        raise RestorePointIncompatible(
            f"maxParallelism is fixed for a lineage: checkpoint={manifest.max_parallelism} "
            f"job={settings.max_parallelism}; set scaling.maxParallelism back"
        )
    if manifest.key_hash != settings.key_hash:
        raise RestorePointIncompatible(
            f"keyHash is fixed for a lineage: checkpoint={manifest.key_hash} "
            f"job={settings.key_hash}; set scaling.keyHash back"
        )
    _check_batch(manifest, settings)
    _check_backend(manifest, settings)
    check_spark(manifest)


def check_fits(manifest: SnapshotRoot, graph: JobGraph, settings: JobSettings) -> None:
    """Refuse a job that cannot continue from this checkpoint.

    Raises RestorePointIncompatible: naming what differs and what to do.
    """
    check_settings(manifest, settings)
    check_operators(manifest, [operator.uid for operator in graph.operators], settings)
    for operator in graph.operators:
        stored = manifest.operators.get(operator.uid)
        if stored is not None and stored.key_types != list(operator.key_types):
            raise RestorePointIncompatible(
                f"the key of a stateful operator cannot change: uid={operator.uid} "
                f"checkpoint={stored.key_types} job={list(operator.key_types)}; give the operator "
                f"another uid to start it empty"
            )


def check_operators(manifest: SnapshotRoot, uids: Sequence[str], settings: JobSettings) -> None:
    """Refuse to leave state behind, unless the job says that it may be.

    Raises RestorePointIncompatible: naming the operators that the job does not have.
    """
    if settings.restore.allow_non_restored:
        return
    stored = [uid for uid, state in manifest.operators.items() if state.subtasks]
    try:
        check_all_restored(stored, uids)
    except UserError as error:
        raise RestorePointIncompatible(*error.args) from error


def lay_sources(
    choice: Choice,
    own: ObjectStore,
    folder: Path,
    input_uids: Sequence[str],
    settings: JobSettings,
) -> SparkLog | None:
    """Lay the point's progress of the sources, for Spark to go on from; None where it has none.

    Args:
        own: the store of the lineage.
        folder: Spark's checkpoint location; not there yet, or empty.

    Raises:
        RestorePointIncompatible: the job has an input no more.
        RestorePointCorrupt: it cannot be read.
    """
    manifest = choice.manifest
    if manifest is None or not manifest.source:
        return None
    allow = settings.restore.allow_non_restored
    with _corrupt_point():
        objects = open_store(choice.store_url) if choice.store_url else own
        log = SparkLog.from_json(with_texts(objects, manifest))
        try:
            lay(folder, log, input_uids, allow_dropped=allow)
        except UserError as error:
            raise RestorePointIncompatible(*error.args) from error
    return log


def already_finished(choice: Choice, settings: JobSettings) -> bool:
    """A bounded job that has finished stays so; there is nothing to run."""
    if choice.finished is not None:
        return True
    manifest = choice.manifest
    if manifest is None or choice.explicit or choice.address:
        return False
    return settings.bounded and bool(manifest.extra.get("finished"))


def _check_batch(manifest: SnapshotRoot, settings: JobSettings) -> None:
    """The backend batch begins with nothing, and leaves nothing to go on with."""
    if settings.in_one_epoch and manifest.epoch > 0:
        raise RestorePointIncompatible(
            f"the backend batch reads no state, and the restore point has some: "
            f"checkpoint={manifest.checkpoint_id} epoch={manifest.epoch}; name another "
            f"state.checkpointDir, or use rocksdb or hashmap"
        )
    if manifest.extra.get(STATELESS) and not settings.in_one_epoch:
        raise RestorePointIncompatible(
            f"the restore point is of the backend batch, which keeps no state: "
            f"checkpoint={manifest.checkpoint_id}; name another state.checkpointDir"
        )


def _check_backend(manifest: SnapshotRoot, settings: JobSettings) -> None:
    """Said before servers start to restore, which would find it out one by one."""
    reader = Databases(settings.backend).owner
    for uid, owner in _owners(manifest):
        try:
            check_owner(owner, reader, f"checkpoint={manifest.checkpoint_id} uid={uid}")
        except UserError as error:
            raise RestorePointIncompatible(str(error)) from error


def _owners(manifest: SnapshotRoot) -> list[tuple[str, str]]:
    """Operators with native files, and the identifiers of the backends whose they are."""
    if isinstance(manifest, Root):
        return [(uid, operator.backend) for uid, operator in manifest.operators.items()]
    native = (handle for handle in manifest.handles if handle.format == "native")
    return [(handle.uid, owner_of(handle)) for handle in native]


def check_spark(manifest: SnapshotRoot, version: str = pyspark.__version__) -> None:
    """Refuse native files that another minor version of Spark wrote.

    Only a canonical savepoint, which everything reads, carries a job from one to another. A
    manifest that names no version is taken: nothing is known against it.

    Raises:
        RestorePointIncompatible: naming both versions and what to do.
    """
    wrote = str(manifest.extra.get(SPARK_VERSION, ""))
    native = any(state.is_native for state in manifest.operators.values())
    if not native or not wrote or _minor(wrote) == _minor(version):
        return
    raise RestorePointIncompatible(
        f"the restore point has native files of another Spark: checkpoint={manifest.checkpoint_id} "
        f"written_by={wrote} this={version}; take a canonical savepoint with the version that "
        "wrote it (an upgrade with upgrade.mode Savepoint does), and restore from that"
    )


def _minor(version: str) -> tuple[str, ...]:
    return tuple(version.split(".")[:2])
