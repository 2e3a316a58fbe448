"""Checkpoint directories that the job has moved away from: their lineages are given up. Pure.

A lineage is released once the job runs elsewhere and has completed a checkpoint there. Until then,
going back to it is but another edit. The data stay; who makes a job with that directory later finds
no owner in its way. An object that goes gives up what it has not given up by then.
"""

from datetime import datetime, timedelta

from moorage_api.status import Leaving
from moorage_operator.decide.draft import Draft
from moorage_operator.decide.restore_point import Obstacle, place_of
from moorage_operator.plan import RunStoreTask, StoreTask

_MOST = 4
_TRIES = 6
_FIRST_WAIT = 10.0
_UNKNOWN = "its ControllerRevision was deleted, and nothing else says where it is"


def note_left(draft: Draft, revision: str) -> None:
    """The next attempt runs this revision: remember a lineage that is left by that."""
    known, old = draft.world.revisions, draft.attempt.revision
    if revision not in known:
        return
    here = place_of(known[revision].spec)
    for one in draft.status.leaving:
        if one.revision not in known:
            _tell_not_released(draft, one, _UNKNOWN)
    left = [
        one
        for one in draft.status.leaving
        if one.revision in known and place_of(known[one.revision].spec) != here
    ]
    moves = old in known and place_of(known[old].spec) != here
    places = {place_of(known[one.revision].spec) for one in left}
    if moves and draft.status.snapshots.lineage_id and place_of(known[old].spec) not in places:
        left.append(Leaving(revision=old, attempt=draft.attempt.number))
    if old not in known and _lies_elsewhere(draft, here, *places):
        _tell_not_released(draft, Leaving(revision=old, attempt=draft.attempt.number), _UNKNOWN)
    for one in left[:-_MOST]:
        _tell_not_released(draft, one, "the job has left others since, before it ran there")
    if tuple(left) != draft.status.leaving:
        draft.put(leaving=tuple(left[-_MOST:]))


def _lies_elsewhere(draft: Draft, *places: tuple[str, str | None]) -> bool:
    """Whether the newest checkpoint is in none of these directories."""
    last = draft.status.snapshots.last_checkpoint
    return last is not None and not last.path.startswith(
        tuple(f"{one.partition('?')[0]}/" for one, _ in places)
    )


def release_left(draft: Draft) -> None:
    """The job runs, and nothing else is to be done: give up what it left, one after the other."""
    if draft.status.leaving and _is_settled(draft):
        _release_first(draft)


def release_rest(draft: Draft, until: datetime) -> bool:
    """The object goes, and its own lineage is settled; say whether nothing else is left to do."""
    if draft.status.leaving and not draft.reached(until):
        _release_first(draft)
    for one in draft.status.leaving if draft.reached(until) else ():
        _tell_not_released(draft, one, "it is not done in time")
        _forget(draft)
    return not draft.status.leaving


def being_released(draft: Draft, revision: str) -> Obstacle | None:
    """A release under way would end a driver that began in that directory meanwhile."""
    known = draft.world.revisions
    spec = known[revision].spec if revision in known else draft.world.spec
    for one in draft.status.leaving[:1]:
        view = draft.world.store_tasks.get(left_store_task(draft.meta.uid, one).id)
        pending = view is not None and view.state == "Pending" and one.revision in known
        if pending and spec is not None and place_of(known[one.revision].spec) == place_of(spec):
            text = f"waits until the release of {spec.state.checkpoint_dir} has ended"
            return Obstacle("LineageBeingReleased", text, passes=True)
    return None


def _release_first(draft: Draft) -> None:
    one = draft.status.leaving[0]
    known = draft.world.revisions.get(one.revision)
    if known is None:
        _forget(draft)
        _tell_not_released(draft, one, _UNKNOWN)
        return
    if one.retry_at is not None and not draft.reached(one.retry_at):
        draft.wake_at(one.retry_at)
        return
    where, store_task = known.spec.state.checkpoint_dir, left_store_task(draft.meta.uid, one)
    view = draft.world.store_tasks.get(store_task.id)
    draft.wake(draft.config.busy_resync)
    if view is None or view.state == "Pending":
        draft.do(RunStoreTask(store_task, one.revision))
    elif view.state == "Completed":
        _forget(draft)
        text = f"the lineage in {where} is given up: the job runs on another directory"
        draft.tell("Normal", "LineageReleased", text, store_task.id)
    elif view.retryable and one.tries + 1 < _TRIES:
        wait = timedelta(seconds=_FIRST_WAIT * 4.0**one.tries)
        again = one.model_copy(update={"tries": one.tries + 1, "retry_at": draft.now + wait})
        draft.put(leaving=(again, *draft.status.leaving[1:]))
    else:
        _forget(draft)
        _tell_not_released(draft, one, view.message)


def left_store_task(uid: str, one: Leaving) -> StoreTask:
    """The store task that releases a lineage: one for each leaving, and for each try of it."""
    return StoreTask(f"{uid}-left-{one.revision}-{one.attempt}-{one.tries}", "Release")


def _tell_not_released(draft: Draft, one: Leaving, why: str) -> None:
    known = draft.world.revisions.get(one.revision)
    where = known.spec.state.checkpoint_dir if known is not None else f"the place of {one.revision}"
    text = f"the lineage in {where}, which the job has left, still names it: {why}"
    draft.tell("Warning", "LineageNotReleased", text, left_store_task(draft.meta.uid, one).id)


def _is_settled(draft: Draft) -> bool:
    """Whether the driver that runs has completed a checkpoint itself, whatever time it was then."""
    return draft.attempt.running_since is not None and draft.attempt.checkpointed


def _forget(draft: Draft) -> None:
    draft.put(leaving=draft.status.leaving[1:])
