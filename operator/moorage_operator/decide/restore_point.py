"""What the next start begins from, and what keeps it from beginning. Pure.

State never becomes empty by itself: the only ways to an empty start are an explicit Empty that is
acknowledged or whose store proves that there is nothing to lose, and a driver that finds under its
fence that the lineage never completed a checkpoint. What could not be read proves nothing.
"""

import hashlib
from dataclasses import dataclass

from moorage_api import JobSpec
from moorage_api.driver import ORDER_BY_SPEC
from moorage_api.status import RestorePointStatus
from moorage_operator.decide.draft import Draft
from moorage_operator.decide.fencing import strangers
from moorage_operator.decide.specs import is_new_nonce, policy
from moorage_operator.plan import StoreTask
from moorage_operator.world import SnapshotView, StoreView, Unreadable

LATEST = RestorePointStatus(mode="Latest")


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why nothing is started now."""

    reason: str
    message: str
    passes: bool = False  # it goes away by itself, so that waiting is right; else a person must act


def obstacle(draft: Draft) -> Obstacle | None:
    """What keeps a driver from being started, whatever it would begin from."""
    if draft.world.namespace_terminating:
        text = f"namespace {draft.meta.namespace} is being deleted, so nothing is started in it"
        return Obstacle("NamespaceTerminating", text, passes=True)
    rival = draft.world.directory_rival
    if rival and not _is_holder(draft):
        text = (
            f"spec.state.checkpointDir is already that of {rival}; "
            "give this job its own directory, or delete the other one"
        )
        return Obstacle("CheckpointDirConflict", text)
    for pod in strangers(draft):
        if pod.deleted_at is not None:
            return Obstacle("ForeignDriver", f"waits for the end of foreign pod {pod.name}", True)
        text = f"pod {pod.name} runs and is not of this object; delete it"
        return Obstacle("ForeignDriver", text)
    return _ownership(draft)


def _is_holder(draft: Draft) -> bool:
    """Whether the lineage in this directory is this object's, whatever others say of it."""
    spec, known = policy(draft), draft.world.revisions.get(draft.attempt.revision)
    if spec is not None and known is not None and moved(known.spec, spec):
        return False
    store = draft.world.store
    if isinstance(store, StoreView) and store.owner is not None:
        return store.owner[3] == draft.meta.uid
    return bool(draft.status.snapshots.lineage_id)


def place_of(spec: JobSpec) -> tuple[str, str | None]:
    """Where its lineage lies: directories of one name may be on two servers."""
    return spec.state.checkpoint_dir.rstrip("/"), spec.state.s3.endpoint


def moved(old: JobSpec, new: JobSpec) -> bool:
    """Whether the state lies in another directory by the new spec."""
    return old.state.checkpoint_dir.rstrip("/") != new.state.checkpoint_dir.rstrip("/")


def next_restore(draft: Draft) -> RestorePointStatus | Obstacle:
    """What the next start begins from.

    An order of spec.restore is followed once: its id is kept in the lineage's log, and a start that
    repeats it goes on from the newest checkpoint.
    """
    attempt, spec = draft.attempt, policy(draft)
    point = attempt.restore_point
    by_spec = attempt.running_since is None and point is not None and is_by_spec(point)
    begun = attempt.number > 0 and bool(attempt.revision)
    fresh = attempt.number == 0 or (not begun and draft.status.next_restore is None)
    if spec is not None and (is_new_nonce(draft) or (fresh and not _followed(draft)) or by_spec):
        return _by_spec(draft, spec)
    operation, given = draft.status.operation, draft.status.given_point
    if spec is not None and spec.upgrade.mode != "Stateless":
        # It may have been when this began. Of a driver that got to begin empty the lineage knows.
        return given if given is not None and given.mode != "Empty" else LATEST
    if operation is not None and operation.mode_used == "Stateless" and spec is not None:
        return _stateless(spec, f"{operation.id}-{draft.tag}")
    return given or LATEST


def with_newest_known(draft: Draft, point: RestorePointStatus) -> RestorePointStatus:
    """Latest, with the newest checkpoint that was heard of: a store without it is another one.

    A directory that was emptied, or an endpoint that was edited, is no lineage that begins. That is
    for the driver to see, under its fence.
    """
    last = draft.status.snapshots.last_checkpoint
    if point.mode != "Latest" or last is None:
        return point
    return point.model_copy(update={"path": last.path, "checkpoint_id": last.id})


def is_by_spec(point: RestorePointStatus) -> bool:
    """Whether spec.restore chose it."""
    return point.order_id.startswith(ORDER_BY_SPEC)


def first_order(spec: JobSpec) -> str:
    """Names an explicit choice of spec.restore: the same choice under the same nonce is one."""
    restore = spec.restore
    chosen = f"{restore.mode}\0{restore.path}\0{restore.snapshot_name}"
    digest = hashlib.sha256(chosen.encode()).hexdigest()[:8]
    return f"{ORDER_BY_SPEC}{restore.nonce}-{digest}"


def named_snapshot(draft: Draft, spec: JobSpec) -> SnapshotView | Obstacle:
    """The completed snapshot that spec.restore names."""
    name, known = spec.restore.snapshot_name, draft.world.snapshots
    if isinstance(known, Unreadable):
        return Obstacle("SnapshotsUnreadable", f"snapshots cannot be read: {known.message}", True)
    found = next((one for one in known if one.meta.name == name), None)
    where = f"spec.restore.snapshotName names {name}, "
    if found is None:
        fix = "name one that `kubectl get ssnap` shows for this job"
        return Obstacle("RestorePointNotFound", f"{where}which is not there; {fix}")
    if found.meta.deleted_at is not None:
        return Obstacle("RestorePointNotFound", f"{where}which is being deleted; name another one")
    status = found.status
    if status.state != "Completed" or not status.path:
        fix = "wait for it, or name another one"
        text = f"{where}which is not completed: state={status.state}; {fix}"
        return Obstacle("RestorePointNotFound", text)
    return found


def path_store_task(draft: Draft, spec: JobSpec) -> StoreTask:
    """Looks for what spec.restore.path names."""
    return StoreTask(f"{draft.meta.uid}-{first_order(spec)}", "Verify", spec.restore.path)


def is_path_absent(draft: Draft, spec: JobSpec) -> bool:
    """Whether it was looked for and is not there; what could not be looked for may be."""
    view = draft.world.store_tasks.get(path_store_task(draft, spec).id)
    return view is not None and view.state == "Completed" and not view.result.get("found")


def _followed(draft: Draft) -> bool:
    """Whether the status, if it came from a backup, says that this nonce was followed already."""
    spec = draft.world.spec
    done = draft.status.reconciliation.restore_nonce
    inherited = draft.attempt.number > 0 and bool(draft.status.snapshots.lineage_id)
    return inherited and spec is not None and spec.restore.nonce <= done


def _by_spec(draft: Draft, spec: JobSpec) -> RestorePointStatus | Obstacle:
    restore, order = spec.restore, first_order(spec)
    if restore.mode == "Latest":
        return RestorePointStatus(mode="Latest", order_id=order)
    if restore.mode == "Path":
        return RestorePointStatus(mode="Path", path=restore.path, order_id=order)
    if restore.mode == "Empty":
        return _empty(draft, spec, order)
    found = named_snapshot(draft, spec)
    if isinstance(found, Obstacle):
        return found
    return RestorePointStatus(
        mode="Path",
        path=found.status.path,
        digest=found.status.manifest_digest,
        order_id=order,
        checkpoint_id=found.status.checkpoint_id,
        completed_at=found.status.completed_at,
    )


def _empty(draft: Draft, spec: JobSpec, order: str) -> RestorePointStatus | Obstacle:
    point = RestorePointStatus(mode="Empty", order_id=order)
    if spec.restore.acknowledge_state_loss:
        return point
    store = draft.world.store
    field = "spec.restore.acknowledgeStateLoss"
    if isinstance(store, Unreadable) and store.reason == "StoreDenied":
        fix = f"set {field} to true if that is meant, or let the operator read the store"
        return Obstacle("StoreDenied", f"whether there is state cannot be read; {fix}")
    if isinstance(store, Unreadable) and store.reason == "RestorePointRetired":
        # There is no checkpoint to lose. The driver asks once more, under its fence.
        return point
    if not isinstance(store, StoreView):
        why = store.message if isinstance(store, Unreadable) else "it is being read"
        text = f"waits for the store to show whether there is state: {why}"
        return Obstacle("StoreUnavailable", text, passes=True)
    if not _has_state(store) or order in store.order_ids:
        return point
    text = (
        f"spec.restore.mode is Empty, and {spec.state.checkpoint_dir} has state; "
        f"set {field} to true to leave it behind, or use mode Latest"
    )
    return Obstacle("StateLossNotAcknowledged", text)


def _stateless(spec: JobSpec, order: str) -> RestorePointStatus | Obstacle:
    if spec.restore.acknowledge_state_loss:
        return RestorePointStatus(mode="Empty", order_id=order)
    text = (
        "spec.upgrade.mode is Stateless, and spec.restore.acknowledgeStateLoss is false; "
        "set it to true to leave the state behind, or choose another mode"
    )
    return Obstacle("StateLossNotAcknowledged", text)


def _has_state(store: StoreView) -> bool:
    return store.exists and (store.newest is not None or bool(store.savepoints))


def _ownership(draft: Draft) -> Obstacle | None:
    """Whose lineage it is, where that was read; the driver asks again under its fence."""
    store = draft.world.store
    if not isinstance(store, StoreView) or not store.exists or store.owner is None:
        return None
    meta = draft.meta
    cluster, namespace, name, uid = store.owner
    if (cluster, namespace, name) != (draft.config.cluster_id, meta.namespace, meta.name):
        text = (
            f"spec.state.checkpointDir belongs to job {cluster}/{namespace}/{name}; "
            "give this job its own directory"
        )
        return Obstacle("CheckpointDirConflict", text)
    if uid == meta.uid or store.released or meta.annotation("adopt-lineage") == store.lineage:
        return None
    text = (
        f"spec.state.checkpointDir holds the state of another object of this name (uid {uid}) that "
        f"did not give it up; make sure that it is gone, then annotate this one with "
        f"moorage.dev/adopt-lineage={store.lineage}"
    )
    return Obstacle("AdoptRequired", text)
