"""Which spec is meant: the newest, the one that runs, the one to start next. Pure.

A version that was given up is not tried again, whatever parallelism is asked for: the pass that
gives it up goes on with the last good one, and those that follow read that in its place.

An edit that is wrong changes nothing of what runs: everything here then goes by the last good spec,
which its ControllerRevision keeps. Values that need no new revision (policies, desiredState) are
those of the newest good spec. What became of each version is kept for people, in
`status.revisions`; nothing is decided by it. Nor by the profile that is kept: it tells what
defaults the spec was judged with.
"""

from datetime import timedelta
from typing import Literal

from moorage_api import Deletion, JobSpec, Problem
from moorage_api.changes import described, version_hash
from moorage_api.status import RevisionRecord
from moorage_operator.decide.draft import Draft
from moorage_operator.plan import SaveRevision, TidyRevisions
from moorage_operator.world import Revision

REVISION_REFUSED = "RevisionRefused"
"""What ran goes on for now, as the version after it cannot be kept."""

_HASH = 10
_LONGEST = 900
_RECORDS = 10
"""Of versions: a status has no room for all that ever were."""
_CHANGED = 8
"""Fields that a record names."""
_TOLD = 500
_FEW = 8
"""Fields that wait for a restart and are named."""
_NODE_LOST = timedelta(minutes=2)


def revision_name(job: str, spec_hash: str) -> str:
    """The name of the ControllerRevision of a spec."""
    return f"{job}-{spec_hash[:_HASH]}"


def is_valid(draft: Draft) -> bool:
    """Whether the newest spec may be acted on."""
    return draft.world.spec is not None and not draft.problems


def newest_name(draft: Draft) -> str:
    """The revision of the newest spec; empty if that is wrong."""
    return name_of_newest(draft) if is_valid(draft) else ""


def name_of_newest(draft: Draft) -> str:
    """The revision of the newest spec, right or wrong: one that is known, under its name."""
    digest = draft.world.spec_hash
    known = (one.name for one in draft.world.revisions.values() if one.spec_hash == digest)
    return next(known, "") or revision_name(draft.meta.name, digest)


def policy(draft: Draft) -> JobSpec | None:
    """The spec whose policies hold: the newest good one; None if there never was one."""
    if is_valid(draft):
        return draft.world.spec
    good = _last_good(draft)
    return good.spec if good is not None else None


def running_spec(draft: Draft) -> JobSpec | None:
    """The spec that the current attempt runs."""
    found = draft.world.revisions.get(draft.attempt.revision)
    return found.spec if found is not None else policy(draft)


def desired(draft: Draft) -> Literal["Running", "Suspended"]:
    """What the job is to do; after a wrong edit, what it did before."""
    spec = draft.world.spec
    if is_valid(draft) and spec is not None:
        return spec.desired_state
    if spec is not None and spec.desired_state == "Suspended" and _is_only_beyond(draft):
        # Limits are for what is to run.
        return "Suspended"
    return draft.status.reconciliation.desired_state or "Running"


def borne(draft: Draft) -> tuple[Problem, ...]:
    """What is beyond limits, and runs already."""
    return tuple(one for one in draft.world.beyond if one not in draft.problems)


def _is_only_beyond(draft: Draft) -> bool:
    return all(one in draft.world.beyond for one in draft.problems)


def target(draft: Draft) -> str:
    """The revision to start next; empty if no good spec is known."""
    newest = newest_name(draft)
    if newest and not _rejected(draft) and not _holds_back(draft):
        return newest
    good = _last_good(draft)
    return good.name if good is not None else newest


def is_new_nonce(draft: Draft) -> bool:
    """Whether spec.restore is to be followed again: of the newest spec, or the last good one."""
    spec = policy(draft)
    return spec is not None and spec.restore.nonce > draft.status.reconciliation.restore_nonce


def keep_revision(draft: Draft, name: str) -> bool:
    """See to it that the revision to start is kept; say whether it is."""
    if name in draft.world.revisions:
        return True
    if not name:
        return False  # no good spec is known
    if name == newest_name(draft) and draft.world.given_up is not None:
        draft.do(SaveRevision(name, 0, draft.world.spec_hash))  # of no generation: nobody wrote it
    elif name == newest_name(draft):
        profile = draft.world.profile.digest if draft.world.profile is not None else ""
        draft.do(SaveRevision(name, draft.meta.generation, draft.world.spec_hash, profile))
    return False


def tidy_revisions(draft: Draft) -> None:
    """Another version runs: those stay that may be gone back to, or say where state lies."""
    status, left = draft.status.reconciliation, {one.revision for one in draft.status.leaving}
    keep = {status.current_revision, status.stable_revision, draft.attempt.revision, *left} - {""}
    draft.do(TidyRevisions(frozenset(keep)))


def deletion(draft: Draft) -> Deletion:
    """What stays when the object is deleted: the newest word, as far as it can be read.

    Where only an older one is known, state is kept: it may say Delete and have been taken back.
    """
    if draft.world.spec is not None:
        return draft.world.spec.deletion
    good = _last_good(draft)
    known = good.spec.deletion if good is not None else Deletion()
    return known.model_copy(update={"policy": "Retain"})


def lost_patience(draft: Draft) -> timedelta:
    """How long a node may be silent."""
    spec = policy(draft)
    if spec is None:
        return _NODE_LOST
    return spec.failure_policy.infrastructure.node_lost_timeout.timedelta


def _last_good(draft: Draft) -> Revision | None:
    status, known = draft.status, draft.world.revisions
    operation, done = status.operation, status.reconciliation
    wanted = [draft.attempt.revision, done.current_revision, done.stable_revision]
    if operation is not None and (operation.type == "Rollback" or not _rejected(draft)):
        wanted.insert(0, operation.target_revision)
    good = (known[name] for name in wanted if name in known)
    # Of one that was rolled back there is an attempt, and it is not what to go on with.
    left = (one for one in good if not done.rejected_spec_hash or not _gave_up(draft, one.spec))
    return next(left, None)


def give_up(draft: Draft, name: str, why: str = "", *, instead: str = "") -> None:
    """The newest version is not tried again, until it is edited or a person asks for it.

    Args:
        name: the revision that did not do; it is given up itself where the newest spec is wrong, or
            is by now what goes on.
        instead: the one that goes on; if not named, that of the attempt.
    """
    known, good = draft.world.revisions, instead or draft.attempt.revision
    if is_given_up(draft):
        return  # which another one that does not do makes no better
    if draft.newest is not None and newest_name(draft) not in ("", good):
        _reject(draft, draft.newest, good, why)
        note_rejected(draft, name_of_newest(draft), why)
    elif name in known:
        _reject(draft, known[name].spec, good, why)
        draft.put_reconciliation(rejected_generation=0)  # which is that of the wrong one
        note_rejected(draft, name, why)


def _reject(draft: Draft, spec: JobSpec, good: str, why: str) -> None:
    version, width = version_hash(spec), spec.scaling.parallelism
    runs = draft.world.revisions.get(good)
    same = runs is not None and version_hash(runs.spec) == version
    draft.put_reconciliation(
        rejected_spec_hash=version,
        rejected_parallelism=width if same else 0,
        rejected_generation=draft.meta.generation,
        rejected_message=why[:_LONGEST],
    )


def renew_rejection(draft: Draft) -> None:
    """A version that was given up stays so while nobody edits it, by whatever hash it is known."""
    done, spec, generation = draft.status.reconciliation, draft.newest, draft.meta.generation
    if not done.rejected_spec_hash or spec is None:
        return
    if done.rejected_spec_hash == version_hash(spec):
        draft.put_reconciliation(rejected_generation=generation)
    elif done.rejected_generation == generation:
        _reject(draft, spec, draft.attempt.revision, done.rejected_message)


def note_restart(draft: Draft) -> None:
    """What is done now follows moorage.dev/restart: what was given up may be tried again."""
    if draft.restart_asked:
        draft.put_reconciliation(rejected_spec_hash="")
    draft.put_triggers(restart=draft.meta.annotation("restart"))


def pass_over_restart(draft: Draft, why: str) -> None:
    """There is nothing to restart: moorage.dev/restart counts as followed, and it is told."""
    if draft.restart_asked:
        asked = draft.meta.annotation("restart")
        text = f"the annotation moorage.dev/restart is {asked[:80]!r} and restarts nothing: {why}"
        key = f"{draft.meta.uid}-restart-{asked}"
        draft.tell("Warning", "AnnotationIgnored", text, key)
    note_restart(draft)


def is_given_up(draft: Draft) -> bool:
    """Whether the newest version was given up, and another one goes on in its place."""
    return draft.world.given_up is not None or _rejected(draft)


def _rejected(draft: Draft) -> bool:
    """Whether the spec that passes go by is the one that was given up."""
    spec, done = draft.world.spec, draft.status.reconciliation
    if spec is None or draft.world.given_up is not None or not done.rejected_spec_hash:
        return False
    return _gave_up(draft, spec)


def _gave_up(draft: Draft, spec: JobSpec) -> bool:
    done = draft.status.reconciliation
    return done.gave_up(version_hash(spec), spec.scaling.parallelism)


def _holds_back(draft: Draft) -> bool:
    """Whether a new version waits until the old one runs again: to take a savepoint of it, say."""
    operation, spec = draft.status.operation, draft.world.spec
    if operation is None or operation.type != "Recover" or spec is None:
        return False
    patient = spec.upgrade.mode == "Savepoint" and spec.upgrade.fallback != "LastCheckpoint"
    if not (patient or operation.reason == REVISION_REFUSED):
        return False
    once_ran = draft.status.reconciliation.running_revision == draft.attempt.revision
    return once_ran and not is_new_nonce(draft)


# -- what became of each -----------------------------------------------------------------------


def note_begun(draft: Draft, name: str, attempt: int) -> None:
    """A driver of this version is to run, its first one unless it is the version that ran."""
    known = list(draft.status.revisions)
    before = next((one for one in reversed(known) if one.attempt), None)
    if before is not None and before.name == name:
        return
    left = [
        one.model_copy(update={"outcome": "Superseded"})
        if one is before and not one.outcome
        else one
        for one in known
    ]
    changed = _changed(draft, before.name, name) if before is not None else ()
    record = RevisionRecord(
        name=name,
        generation=draft.meta.generation,
        attempt=attempt,
        at=draft.now,
        changed=changed,
    )
    draft.put(revisions=tuple([*left, record][-_RECORDS:]))


def note_stable(draft: Draft, name: str) -> None:
    """The version that runs is good."""
    _settle(draft, name, "Stable", "")


def note_rolled_back(draft: Draft, name: str, why: str) -> None:
    """It made room for the one before it."""
    _settle(draft, name, "RolledBack", why)


def note_rejected(draft: Draft, name: str, why: str) -> None:
    """It was given up; perhaps before it ever began."""
    last = draft.status.revisions[-1] if draft.status.revisions else None
    if last is not None and last.name == name:
        _settle(draft, name, "Rejected", why)
        return
    running = draft.attempt.revision
    record = RevisionRecord(
        name=name,
        generation=draft.meta.generation,
        at=draft.now,
        changed=_changed(draft, running, name) if running else (),
        outcome="Rejected",
        message=why[:_TOLD],
    )
    draft.put(revisions=(*draft.status.revisions, record)[-_RECORDS:])


def _settle(draft: Draft, name: str, outcome: str, why: str) -> None:
    """Of its last record alone: an older one of the same version had an end of its own."""
    known = draft.status.revisions
    place = next((i for i in reversed(range(len(known))) if known[i].name == name), None)
    if place is None:
        return
    update = {"outcome": outcome, "message": why[:_TOLD]}
    settled = known[place].model_copy(update=update)
    draft.put(revisions=(*known[:place], settled, *known[place + 1 :]))


def _changed(draft: Draft, before: str, name: str) -> tuple[str, ...]:
    """What differs, as far as both specs are known."""
    specs = {one: known.spec for one, known in draft.world.revisions.items()}
    old, new = specs.get(before), specs.get(name) or draft.world.spec
    if old is None or new is None:
        return ()
    found = described(old, new)
    more = (f"and {len(found) - _CHANGED} more",) if len(found) > _CHANGED else ()
    return (*found[:_CHANGED], *more)


def show_profile(draft: Draft) -> None:
    """Keep the defaults that the spec was judged with, and tell of another profile."""
    before, now = draft.world.status.profile, draft.world.profile
    draft.put(profile=now)
    taken, old = (now.digest if now else ""), (before.digest if before else "")
    waiting = now.waiting if now else ""
    if taken != old and draft.attempt.number > 0:
        name = now.name if now else "none"
        text = f"The job goes by profile {name} from now on, as far as its own spec says nothing"
        draft.tell("Normal", "ProfileTaken", text, f"{draft.attempt.number}-{taken}")
    if waiting:
        # With every pass, of which the first tells it: this process may die once it is written.
        draft.tell(
            "Normal", "ProfileWaits", waiting_text(draft), f"{draft.attempt.number}-{waiting}"
        )


def waiting_text(draft: Draft) -> str:
    """What becomes of a profile that says something else by now; empty if it does not."""
    profile, fields = draft.world.profile, draft.world.profile_waits
    if profile is None or not profile.waiting:
        return ""
    more = f" and {len(fields) - _FEW} more" if len(fields) > _FEW else ""
    return (
        f"the profile has changed by what needs a restart ({', '.join(fields[:_FEW])}{more}); it "
        "is taken with the next edit that restarts the job, or set moorage.dev/restart"
    )
