"""What keeps a readable spec from being acted on, beyond what models and cluster say. Pure.

Found before anything is stopped, so that a wrong edit leaves the running job running. And
annotations that look like an order and are none: the API server takes any.
"""

from collections.abc import Iterator

from moorage_api import JobSpec, Problem
from moorage_api.problems import field_name
from moorage_api.sizing import empty_dir_size
from moorage_operator.decide.draft import Draft
from moorage_operator.decide.restore_point import Obstacle, is_path_absent, moved, named_snapshot
from moorage_operator.decide.specs import name_of_newest, running_spec
from moorage_state.tuning import judge_options

_FULL = 0.8
"""Of a volume: RocksDB needs room for what it compacts."""

_SNAPSHOT = "spec.restore.snapshotName"
_ACKNOWLEDGE = "spec.restore.acknowledgeStateLoss"


def validate(draft: Draft) -> None:
    """Find everything that is wrong with the newest spec."""
    world = draft.world
    if world.spec is None:
        draft.problems = world.problems or (
            Problem("spec", "cannot be read", "correct it as `kubectl describe` says"),
        )
        return
    # Whether a snapshot must be there depends on whether it is still to be restored from.
    known = [one for one in world.problems if one.field != _SNAPSHOT]
    draft.problems = (*known, *_found(draft, world.spec))


def _found(draft: Draft, spec: JobSpec) -> Iterator[Problem]:
    attempt, done = draft.attempt, draft.status.reconciliation
    yield from _state_options(spec)
    if attempt.number == 0:
        return
    if spec.restore.nonce > done.restore_nonce:
        yield from _restore(draft, spec)
    elif attempt.revision and attempt.revision != name_of_newest(draft):
        yield from _stateless(spec)
    yield from _fixed(draft, spec)


def _state_options(spec: JobSpec) -> Iterator[Problem]:
    """What state servers would refuse when they start."""
    # What a backend of the job's own is told, it judges itself, in the driver.
    own = "state.backend." if spec.state.names_own_backend else ""
    judged = judge_options(spec.state.options, own=own)
    if isinstance(judged, list):
        for one in judged:
            field = ("spec", "state", "options", *filter(None, [one.key]))
            yield Problem(field_name(field), one.reason, one.fix)


def _left_behind(old: JobSpec, spec: JobSpec) -> Iterator[Problem]:
    """The newest checkpoint of another directory: nobody knows that there is one."""
    if not spec.restore.acknowledge_state_loss:
        what = (
            "is false, and the newest checkpoint of another spec.state.checkpointDir is not the "
            f"state in {old.state.checkpoint_dir}"
        )
        fix = (
            "name a savepoint by restore.mode Path or Snapshot to take the state along, or set it "
            "to true to leave the state behind"
        )
        yield Problem(_ACKNOWLEDGE, what, fix)


def _restore(draft: Draft, spec: JobSpec) -> Iterator[Problem]:
    if spec.restore.mode == "Snapshot":
        found = named_snapshot(draft, spec)
        if isinstance(found, Obstacle):
            reason = found.message.removeprefix(f"{_SNAPSHOT} ")
            what, _, fix = reason.partition("; ")
            yield Problem(_SNAPSHOT, what, fix or "look again later")
    if spec.restore.mode == "Path" and is_path_absent(draft, spec):
        what = f"is {spec.restore.path}, where no completed savepoint or checkpoint is"
        yield Problem("spec.restore.path", what, "name one that is there, and raise restore.nonce")
    unwanted = spec.restore.mode == "Empty" and not spec.restore.acknowledge_state_loss
    if unwanted and _has_begun(draft):
        what = "is false, restore.mode is Empty, and the job has state"
        yield Problem(_ACKNOWLEDGE, what, "set it to true to leave the state behind")


def _has_begun(draft: Draft) -> bool:
    """Whether there may be state: a stream that ran has some before its first checkpoint."""
    last = draft.status.snapshots.last_checkpoint
    return draft.attempt.running_since is not None or last is not None


def _stateless(spec: JobSpec) -> Iterator[Problem]:
    if spec.upgrade.mode == "Stateless" and not spec.restore.acknowledge_state_loss:
        what = "is false, and upgrade.mode is Stateless"
        yield Problem(_ACKNOWLEDGE, what, "set it to true, or choose another upgrade.mode")


def _fixed(draft: Draft, spec: JobSpec) -> Iterator[Problem]:
    """What a lineage cannot change; the API server's rules, where in force, refuse it before."""
    # An acknowledged empty start, or another directory under a new nonce, is another lineage.
    known = draft.world.revisions.get(draft.attempt.revision)
    if known is None or not _has_begun(draft):
        return
    old, scaling = known.spec, spec.scaling
    anew = spec.restore.nonce > draft.status.reconciliation.restore_nonce
    other_dir = moved(old, spec)
    if other_dir and draft.world.directory_rival:
        what = f"is already that of {draft.world.directory_rival}"
        yield Problem("spec.state.checkpointDir", what, "give this job its own directory")
    if other_dir and anew and spec.restore.mode == "Latest":
        yield from _left_behind(old, spec)
    if other_dir and not anew:
        what = f"is {spec.state.checkpoint_dir}, and the job's state is in another directory"
        fix = f"write {old.state.checkpoint_dir}, or raise spec.restore.nonce"
        yield Problem("spec.state.checkpointDir", what, fix)
    emptied = anew and spec.restore.mode == "Empty"
    if old.scaling.max_parallelism != scaling.max_parallelism and not (emptied or other_dir):
        what = f"is {scaling.max_parallelism}, and the job's state has another number of key groups"
        fix = f"write {old.scaling.max_parallelism}; it is fixed for a lineage"
        yield Problem("spec.scaling.maxParallelism", what, fix)


_DOMAIN = "moorage.dev/"
_ORDERS = ("savepoint", "checkpoint", "restart", "rollback", "adopt-lineage")
_SWITCHES = ("paused", "skip-final-savepoint")
_NOTES = ("stored-as",)
"""What people write for the API server's sake: the operator has nothing to do with it."""


def warn_of_eviction(draft: Draft) -> None:
    """Tell before the kubelet evicts executors for the size of their state, again and again.

    One that an older operator made may be larger than what its successor is given.
    """
    spec, report = running_spec(draft), draft.report
    if spec is None or report is None or spec.state.local.type != "EmptyDir":
        return
    limit = empty_dir_size(spec.state.local)
    share = report.state_bytes / max(report.executors_ready, 1)
    if share < _FULL * float(limit.value):
        return
    text = (
        f"an executor keeps about {share / 2**30:.1f} GiB of state on an EmptyDir of {limit}, and "
        "is evicted when it is larger than that, at the latest from the next start on; set "
        "spec.state.local.size, or take more executors"
    )
    draft.tell("Warning", "LocalVolumeFull", text, f"{draft.meta.uid}-{draft.attempt.number}")


def tell_ignored_annotations(draft: Draft) -> None:
    """Tell once of each annotation that is passed over."""
    for name in sorted(draft.meta.annotations):
        short = name.removeprefix(_DOMAIN)
        if short == name or short in (*_ORDERS, *_NOTES):
            continue
        value = draft.meta.annotation(short)
        if short not in _SWITCHES:
            known = ", ".join((*_ORDERS, *_SWITCHES))
            text = f"the annotation {name} is not known and does nothing; known are {known}"
        elif value not in ("", "true", "false"):
            text = f"the annotation {name} is {value!r} and does nothing; write true or false"
        else:
            continue
        draft.tell("Warning", "AnnotationIgnored", text, f"{draft.meta.uid}-{name}-{value}")
