"""The autoscaler of a running job: what `capacity` says of its load, into the status. Pure.

It writes how many subtasks there are to be to `.status`, never to the spec, and begins nothing: the
newest spec is read with that number from the next pass on, and what follows is a rescale as of any
edit, in place or by a restart as `scaling.mode` says.
"""

import math
from datetime import timedelta

from moorage_api import JobSpec
from moorage_api.driver import DriverState, LoadReport, OperatorLoad
from moorage_api.sizing import empty_dir_size
from moorage_api.status import AutoscalerStatus, ScaleStep
from moorage_operator.decide.capacity import Busiest, Load, Memory, Rules, Step, Verdict, judge
from moorage_operator.decide.draft import Draft, later
from moorage_operator.decide.health import has_run_in
from moorage_operator.decide.specs import borne, newest_name
from moorage_operator.world import Unreadable

_PAUSE_IN_PLACE = 10.0
_PAUSE_BY_RESTART = 120.0
"""Seconds that a stream stands still for other subtasks, about."""
_FULL = 0.8
"""Of a volume: beyond that the kubelet may evict."""
_HINDERED = {
    "NoRoom": "executors find no room in the cluster",
    "Ineffective": "the last step up brought next to nothing: something else is the bottleneck",
    "HotSubtask": "one subtask has most of the work and a single key group, which no number of "
    "subtasks splits: spread the key, or aggregate before it",
    "AtLimit": "more subtasks are needed than the bounds allow; raise autoscaler.max",
    "EpochsTooSmall": "epochs cost more than their rows, however many subtasks there are; raise "
    "epoch.maxRecordsPerEpoch",
}


def autoscale(draft: Draft) -> None:
    """Decide how many subtasks a job is to have that runs and of which nothing else is wanted."""
    spec, report, scaling = draft.world.spec, draft.report, draft.status.scaling
    if spec is None or not spec.scaling.autoscaler.enabled:
        if scaling.autoscaler is not None and spec is not None:
            _put(draft, None)
        return
    draft.wake(draft.config.resync)
    known = scaling.autoscaler
    if known is None or known.declared != draft.world.declared_parallelism:
        known = AutoscalerStatus(declared=draft.world.declared_parallelism)
        _put(draft, known)
    # A version that may yet be rolled back, or a spec that is not followed, is left as it is; one
    # that is not stable only because its lag grows is given more.
    stable = draft.attempt.stable_since is not None or has_run_in(draft)
    calm = stable and newest_name(draft) == draft.attempt.revision
    if not calm or report is None or report.load is None or report.phase != "running":
        return
    if report.parallelism != spec.scaling.parallelism:
        return
    verdict = judge(
        _rules(draft, spec, report),
        _load(report),
        _memory(draft, known),
        draft.now,
        _room(draft, spec),
    )
    _follow(draft, known, verdict, report)


def give_step_back(draft: Draft, lacks: str) -> bool:
    """A step up for which a quota has no room was none; say whether there was one.

    Else it would hold up every edit that comes after it, and no load would ever be judged again.
    """
    known, spec = draft.status.scaling.autoscaler, draft.world.spec
    running = draft.world.revisions.get(draft.attempt.revision)
    if known is None or spec is None or running is None or known.dry_run:
        return False
    scaler, width = spec.scaling.autoscaler, running.spec.scaling.parallelism
    if not scaler.enabled or known.target <= width or known.target != spec.scaling.parallelism:
        return False
    until = draft.now + scaler.scale_down_delay.timedelta
    changes = {"target": width, "reason": "NoRoom", "no_room_until": until, "step": None}
    _put(draft, known.model_copy(update=changes))
    text = f"{width} subtasks stay, {known.target} are needed: {lacks}"
    key = f"{draft.meta.uid}-NoRoom-{draft.attempt.stable_since}"
    draft.tell("Warning", "AutoscalerHindered", text, key)
    draft.wake(draft.config.busy_resync)
    return True


def _follow(draft: Draft, known: AutoscalerStatus, verdict: Verdict, report: DriverState) -> None:
    memory, width = verdict.memory, report.parallelism
    spec, step = draft.world.spec, verdict.memory.step
    dry = spec is not None and spec.scaling.autoscaler.dry_run
    changes: dict[str, object] = {}
    busiest = _uneven(report)
    if verdict.width != width:
        text = _sentence(verdict, report, busiest)
        changes = {"target": verdict.width, "dry_run": dry, "message": text}
        _tell(draft, known, verdict, text, dry=dry, width=width)
        draft.wake(draft.config.busy_resync)
    elif verdict.reason in _HINDERED:
        since = step.at if step is not None else draft.attempt.stable_since
        key = f"{draft.meta.uid}-{verdict.reason}-{since}"
        text = f"{width} subtasks stay, {verdict.needed} are needed: {_HINDERED[verdict.reason]}"
        if busiest:
            text = f"{text}; {busiest}"
        draft.tell("Warning", "AutoscalerHindered", text, key)
    changes |= {
        "reason": verdict.reason,
        "step": ScaleStep(before=step.before, after=step.after, at=step.at, rate=step.rate)
        if step is not None
        else None,
        "low_since": memory.low_since,
        "low_most": memory.low_most,
        "no_room_until": memory.no_room_until,
        "needed": verdict.needed,
        "utilization": f"{verdict.utilization:.2f}",
        "arrival_rate": f"{verdict.arrival:.1f}",
        "true_rate": "" if math.isinf(verdict.rate) else f"{verdict.rate:.1f}",
        "lag_rows": report.load.lag_rows if report.load is not None else None,
        "busiest": busiest,
    }
    if dry and known.target > 0 and not known.dry_run:  # what was done before stays
        changes |= {"target": known.target, "dry_run": False, "step": known.step}
    _put(draft, known.model_copy(update=changes))


def _tell(
    draft: Draft, known: AutoscalerStatus, verdict: Verdict, text: str, *, dry: bool, width: int
) -> None:
    before = known.step.at if known.step is not None else ""
    key = f"{draft.meta.uid}-{width}-{verdict.width}-{before}"
    if not dry:
        draft.tell("Normal", "AutoscalerDecided", text, key)
    elif (known.target, known.dry_run) != (verdict.width, True):
        draft.tell("Normal", "AutoscalerAdvised", f"{text}; dryRun: nothing is done", key)


_WHY = {
    "ScaleUp": "more arrives than they can do at the wanted utilization",
    "ScaleDown": "fewer have been enough for scaleDownDelay",
    "OutOfBounds": "autoscaler.min and autoscaler.max, or room for the state on volumes, say so",
    "NoRoom": "the executors for more find no room",
}


def _sentence(verdict: Verdict, report: DriverState, busiest: str) -> str:
    load = report.load
    waiting = f", {load.lag_rows:,} rows wait" if load is not None and load.lag_rows else ""
    why = f"; {busiest}" if busiest and verdict.width > report.parallelism else ""
    return (
        f"{report.parallelism} to {verdict.width} subtasks: {_WHY[verdict.reason]}; "
        f"{verdict.arrival:,.0f} rows/s arrive, utilization {verdict.utilization:.2f}{waiting}{why}"
    )


def _busiest(load: LoadReport) -> OperatorLoad | None:
    """The operator whose busiest subtask was at work for longest; None where none says it."""
    found = max(load.operators, key=lambda one: one.most.busy_seconds, default=None)
    return found if found is not None and found.most.busy_seconds > 0 else None


def _uneven(report: DriverState) -> str:
    """Which subtask the others wait for, in words; empty where none."""
    load = report.load
    one = _busiest(load) if load is not None else None
    if load is None or one is None or not _load(report).is_uneven:
        return ""
    share = load.of_window / max(load.seconds, 1.0)
    busy, middle = (min(each.busy_seconds * share, 1.0) for each in (one.most, one.median))
    return (
        f"subtask {one.busiest} of {one.uid} (key groups {one.key_groups}) was at work for "
        f"{busy:.0%} of the time, the median of its {one.subtasks} for {middle:.0%}"
    )


def _put(draft: Draft, known: AutoscalerStatus | None) -> None:
    draft.put(scaling=draft.status.scaling.model_copy(update={"autoscaler": known}))


def _rules(draft: Draft, spec: JobSpec, report: DriverState) -> Rules:
    scaler = spec.scaling.autoscaler
    # A job that is beyond its limits becomes no larger.
    most = min(scaler.max, report.parallelism) if borne(draft) else scaler.max
    in_place = spec.scaling.mode == "InPlaceParallelism"
    return Rules(
        least=min(max(scaler.min, _for_state(spec, report)), most),
        most=most,
        key_groups=spec.scaling.max_parallelism,
        target=float(scaler.target_utilization),
        boundary=float(scaler.utilization_boundary),
        window=scaler.window.seconds,
        cooldown=scaler.stabilization_interval.seconds,
        down_delay=scaler.scale_down_delay.seconds,
        catch_up=scaler.catch_up_duration.seconds,
        backlog=scaler.backlog_lag.seconds,
        up_factor=scaler.scale_up_max_factor,
        down_factor=float(scaler.scale_down_max_factor),
        pause=_PAUSE_IN_PLACE if in_place else _PAUSE_BY_RESTART,
        epoch_rows=spec.epoch.max_records_per_epoch,
    )


def _for_state(spec: JobSpec, report: DriverState) -> int:
    """The fewest subtasks whose executors have room for the state on their volumes."""
    local, executor = spec.state.local, spec.executor
    if executor.instances is not None or local.type != "EmptyDir":
        return 1
    size = _FULL * float(empty_dir_size(local).value)
    executors = math.ceil(report.state_bytes / size)
    return (executors - 1) * executor.cores + 1 if executors > 1 else 1


def _load(report: DriverState) -> Load:
    load = report.load
    if load is None:
        raise LookupError("the driver says nothing of its load")
    one, growth = _busiest(load), 0.0
    if load.lag_rows is not None and load.lag_rows_before is not None and load.lag_seconds > 0:
        growth = (load.lag_rows - load.lag_rows_before) / load.lag_seconds
    return Load(
        width=report.parallelism,
        seconds=load.seconds,
        rows=load.rows,
        epochs=load.epochs,
        busy=load.busy_seconds,
        fixed=load.fixed_seconds,
        lag=load.lag_rows,
        lag_growth=growth,
        busiest=Busiest(one.most.busy_seconds, one.median.busy_seconds, _splits(one.key_groups))
        if one is not None
        else None,
    )


def _splits(key_groups: str) -> bool:
    first, _, last = key_groups.partition("-")
    return first != last


def _memory(draft: Draft, known: AutoscalerStatus) -> Memory:
    step = known.step
    return Memory(
        changed_at=later(draft.status.scaling.changed_at, step.at if step is not None else None),
        step=Step(step.before, step.after, step.at, step.rate) if step is not None else None,
        low_since=known.low_since,
        low_most=known.low_most,
        no_room_until=known.no_room_until,
    )


def _room(draft: Draft, spec: JobSpec) -> int:
    """Subtasks that the executors can run which are there, while others find no room; else 0."""
    pods, report = draft.world.executors, draft.report
    if isinstance(pods, Unreadable) or report is None or spec.executor.instances is not None:
        return 0
    patience = max(spec.scaling.autoscaler.stabilization_interval.seconds, 60.0)
    for pod in pods:
        since = pod.created_at
        waits = pod.phase == "Pending" and pod.unschedulable and since is not None
        if waits and since is not None and draft.reached(since + timedelta(seconds=patience)):
            return max(report.executors_ready, 1) * spec.executor.cores
    return 0
