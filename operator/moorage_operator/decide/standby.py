"""A new version that runs beside the old one before it takes over: the step Standby. Pure.

Its driver has a number, a pod and executors as an attempt has, and is none: the job's attempt is
that of the old version until it has stopped with a last checkpoint. Whatever ends the step before
that, a failure, an edit, a suspension, leaves the old one as it is: the operation no longer names
the other driver, and what no status names is removed.
"""

from datetime import timedelta
from typing import Literal, NamedTuple

from moorage_api.driver import (
    CHECKPOINTS_PATH,
    CheckpointBody,
    DriverState,
    LoadReport,
    RestoreOrder,
    SampleBody,
    SampleOrder,
    StartOrder,
)
from moorage_api.lifecycle import CompareOutputs, Standby
from moorage_api.status import OperationType, StandbyCounts, StandbyStatus
from moorage_operator.decide.draft import Draft
from moorage_operator.decide.health import is_believed, trouble
from moorage_operator.decide.operations import begin
from moorage_operator.decide.outputs import compared, is_sampled, not_comparable
from moorage_operator.decide.phase import held_pod, refused_executors
from moorage_operator.decide.preflight import refuse_version
from moorage_operator.decide.recover import FailureKind, backoff, judge, kind_of
from moorage_operator.decide.restore_point import place_of
from moorage_operator.decide.specs import keep_revision, policy, running_spec
from moorage_operator.decide.stop import aim
from moorage_operator.plan import AskDriver, StartDriver
from moorage_operator.world import PodView, Room, Unreadable

_TRIES = 3
"""Pods that the cluster takes away before the version is given up."""
_BEHIND = timedelta(seconds=10)
"""What arrives in this time may wait: rows that are on their way to an epoch."""
_IDLE = 0.9
"""A stream that is busy for no more of its time has nothing left to read."""
_SLACK_BYTES = 64 << 20
"""What state may differ by in any case: small states are mostly overhead."""
_ENOUGH_ROWS = 100
"""Of an operator of either version, before what they give is compared."""
_EPOCHS = 3
"""Of either driver, before one is said to take less than the other: rows come by the epoch."""


class _Judged(NamedTuple):
    """What is to be said of it now."""

    verdict: Literal["Good", "Behind", "Worse"]
    text: str


def standby_text(draft: Draft) -> str:
    """What a person should know while it goes on."""
    pods = [draft.world.standby_driver, *draft.world.standby_executors]
    held = next((why for pod in pods if pod is not None and (why := held_pod(pod))), None)
    held = held or refused_executors(draft, "Standby")
    known = draft.operation.standby
    more = held[1] if held is not None else known.message if known is not None else ""
    return "the new version runs beside the old one" + (f": {more}" if more else "")


def wants_standby(draft: Draft) -> bool:
    """Whether the new version can and is to run beside the old one first."""
    found, spec, old = trouble(draft), policy(draft), running_spec(draft)
    if spec is None or old is None or spec.upgrade.strategy != "WarmStandby":
        return False
    # Without a checkpoint there is nothing to begin with; and what gets nowhere is not spared.
    begins = draft.status.snapshots.last_checkpoint is not None and place_of(spec) == place_of(old)
    # By a default of the operator's it may have that backend: see the rules of the spec.
    able = spec.upgrade.mode != "Stateless" and spec.state.effective_backend != "forst"
    return begins and able and (found is None or not found.curable)


def room_beside(room: Room) -> str:
    """What quotas lack for a version beside the one that runs; empty for nothing."""
    rest = "beside the version that runs, which upgrade.strategy WarmStandby leaves running"
    return f"{room.beside}, {rest}" if room.beside else ""


def begin_standby(draft: Draft, kind: OperationType, reason: str, message: str) -> None:
    """Begin an operation whose new version runs beside the old one first."""
    rules = _rules(draft)
    begin(draft, kind, "Standby", reason, message, draft.now + rules.catch_up_timeout.timedelta)
    _number(draft)
    follow_standby(draft)


def follow_standby(draft: Draft) -> None:
    """See to it that it runs, judge it, and stop the old version once it is good."""
    operation, pod = draft.operation, draft.world.standby_driver
    if operation.standby is None:
        _number(draft)  # nothing of ours takes it away; a status that a person mended may lack it
    known = draft.operation.standby
    if known is None:
        return
    if known.driver_uid and (pod is None or pod.uid != known.driver_uid or pod.deleted_at):
        _again(draft, f"its pod {draft.pod_name(known.attempt)} was taken away")
    elif pod is not None and (pod.terminal or pod.ended is not None):
        _ended(draft, pod)
    elif draft.late_at is not None and draft.reached(draft.late_at):
        limit = _rules(draft).catch_up_timeout
        why = "; ".join(filter(None, (draft.world.trouble, standby_text(draft))))
        refuse_standby(draft, f"it was not good within {limit}: {why}")
    elif pod is None:
        _make(draft, known)
    else:
        if pod.uid != known.driver_uid:
            _put(draft, driver_uid=pod.uid)
        _look(draft)


def standby_order(draft: Draft, number: int) -> StartOrder:
    """What the driver is told: to begin from what is newest when it gets there."""
    rules = _rules(draft).compare_outputs
    return StartOrder(
        attempt=number,
        cluster_id=draft.config.cluster_id,
        job_uid=draft.meta.uid,
        restore=RestoreOrder(),
        standby=True,
        sample=_order(rules) if rules is not None else None,
    )


def refuse_standby(draft: Draft, why: str) -> None:
    """It did not do beside the old one."""
    refuse_version(draft, "StandbyFailed", f"the new version failed beside the old one: {why}")


# -- underneath --------------------------------------------------------------------------------


def _rules(draft: Draft) -> Standby:
    spec = policy(draft)
    return spec.upgrade.standby if spec is not None else Standby()


def _put(draft: Draft, **changes: object) -> None:
    known = draft.operation.standby
    if known is not None:
        draft.put_operation(standby=known.model_copy(update=changes))


def _number(draft: Draft, **before: object) -> None:
    """Another driver, under a number that no other one has or will have."""
    known = [draft.attempt.number, draft.status.reconciliation.standby_attempt]
    number = max([*known, *(pod.attempt for pod in draft.drivers)]) + 1
    draft.put_reconciliation(standby_attempt=number)
    draft.put_operation(standby=StandbyStatus(attempt=number).model_copy(update=before))


def _make(draft: Draft, known: StandbyStatus) -> None:
    operation = draft.operation
    if known.not_before is not None and not draft.reached(known.not_before):
        draft.wake_at(known.not_before)
    elif lacks := room_beside(draft.world.room):
        _put(draft, message=lacks[:512])
    elif waits := _no_sample_yet(draft):
        _put(draft, message=waits)
    elif keep_revision(draft, operation.target_revision):
        draft.do(StartDriver(operation.target_revision, standby_order(draft, known.attempt)))


def _ended(draft: Draft, pod: PodView) -> None:
    end = judge(pod)
    kind = kind_of(end.reason)
    if kind is FailureKind.STORE:
        _wait(draft, end.message)
    elif kind is FailureKind.INFRASTRUCTURE:
        _again(draft, f"its pod {pod.name} was taken away: {end.message}")
    elif end.outcome == "Failed":
        refuse_standby(draft, end.message)
    else:
        how = pod.ended.reason if pod.ended is not None else pod.phase
        refuse_standby(draft, f"its driver {pod.name} ended without being told to: {how}")


def _again(draft: Draft, why: str) -> None:
    """The cluster took it: no fault of the version's, unless it happens again and again."""
    known = draft.operation.standby
    if known is None:
        return
    if known.tries + 1 >= _TRIES:
        refuse_standby(draft, why)
        return
    text = f"another one is made: {why}"
    _number(draft, tries=known.tries + 1, waits=known.waits, message=text)


def _wait(draft: Draft, why: str) -> None:
    """The store is away, and the old version has it as well: until the step's time is over."""
    known, spec = draft.operation.standby, policy(draft)
    if known is None or spec is None:
        return
    wait = backoff(spec.failure_policy.backoff, known.waits, f"{draft.tag}-{known.attempt}")
    text = f"another one is made in {wait.total_seconds():.0f} s: {why}"[:512]
    at = draft.now + wait
    _number(draft, tries=known.tries, waits=known.waits + 1, not_before=at, message=text)


def _look(draft: Draft) -> None:
    report, rules = draft.world.standby_report, _rules(draft)
    if not isinstance(report, DriverState):
        why = f": {report.message}" if isinstance(report, Unreadable) else ""
        _behind(draft, f"its driver does not answer yet{why}"[:512])
        return
    judged = _keeps_up(draft, report)
    if judged.verdict != "Good":
        _behind(draft, judged.text)
        return
    wanted = rules.compare_outputs
    if wanted is not None and not is_sampled(report.sample, wanted):
        _another_sample(draft)
        return
    if not _observed(draft, report, judged, rules.observe_for.timedelta):
        return
    judged = _compared(draft, report, rules)
    if judged.verdict == "Worse":
        refuse_standby(draft, judged.text)
    elif judged.verdict == "Behind":
        _put(draft, message=judged.text)
    else:
        _stop_old(draft, judged.text)


def _another_sample(draft: Draft) -> None:
    """It was made before this comparison was asked for, and is told of it at its start alone."""
    known = draft.operation.standby
    if known is not None:
        text = "another one is made, which is told of upgrade.standby.compareOutputs as it is now"
        _number(draft, tries=known.tries, waits=known.waits, message=text)


def _order(rules: CompareOutputs) -> SampleOrder:
    return SampleOrder(percent=rules.sample_percent, except_columns=rules.except_columns)


def _no_sample_yet(draft: Draft) -> str:
    """See to it that the old version tells of its output; why it does not yet, empty if it does."""
    rules, old = _rules(draft).compare_outputs, draft.report
    if rules is None or (old is not None and is_sampled(old.sample, rules)):
        return ""
    if old is None:
        # One that is silent for longer is not compared.
        return "its output is compared once the old version answers" if is_believed(draft) else ""
    sample = SampleBody(
        percent=rules.sample_percent,
        except_columns=rules.except_columns,
        seconds=_rules(draft).catch_up_timeout.timedelta.total_seconds(),
    )
    # Taken up at the end of an epoch: in the next one it was, or is asked for anew.
    request = f"{draft.operation.id}-sample-{old.epoch}"
    body = CheckpointBody(request_id=request, sample=sample)
    draft.do(AskDriver(draft.attempt.number, CHECKPOINTS_PATH, body))
    return (
        "the old version is asked for a sample of its output; if it has an older release of "
        "Moorage it has none: upgrade it once without upgrade.standby.compareOutputs"
    )


def _behind(draft: Draft, text: str) -> None:
    _put(draft, caught_up_since=None, counted=None, message=text)


def _observed(draft: Draft, report: DriverState, judged: _Judged, length: timedelta) -> bool:
    """Whether it has kept up for so long, with both counted over that time."""
    known, old = draft.operation.standby, draft.report
    since = known.caught_up_since if known is not None else None
    counted = known.counted if known is not None else None
    now = _counts(report, old) if old is not None else None
    # After a rewind rows are read again. And what the old one did before it answered is not known:
    # nothing could be compared with that.
    anew = now is not None and (counted is None or counted.rewinds != now.rewinds)
    if since is None or anew:
        since, counted = draft.now, now
    _put(draft, caught_up_since=since, counted=counted, message=judged.text)
    over = draft.attended(since) + length
    if draft.reached(over):
        return True
    draft.wake_at(over)
    return False


def _counts(report: DriverState, old: DriverState) -> StandbyCounts:
    return StandbyCounts(
        rows=report.rows_total,
        epoch=report.epoch,
        old_rows=old.rows_total,
        old_epoch=old.epoch,
        rewinds=report.rewinds + old.rewinds,
    )


def _keeps_up(draft: Draft, report: DriverState) -> _Judged:
    """Whether it has read what there was, as far as sources and the clock can tell."""
    if report.phase != "running" or report.last_progress_time is None:
        said = f" ({report.message})" if report.message else ""
        return _Judged("Behind", f"it is {report.phase}{said}"[:512])
    old = draft.report
    lag = report.load.lag_rows if report.load is not None else None
    if lag is None:
        if report.busy_ratio <= max(_IDLE, old.busy_ratio if old is not None else 0.0):
            return _Judged("Good", "it keeps up: it has time left between epochs")
        return _Judged("Behind", "it catches up: epoch follows epoch")
    arrives = max(old.rows_per_second if old is not None else 0.0, report.rows_per_second)
    waits = old.load.lag_rows or 0 if old is not None and old.load is not None else 0
    if lag <= waits + arrives * _BEHIND.total_seconds():
        return _Judged("Good", "it keeps up with its sources")
    # Without the number: a status is not written anew for every look.
    return _Judged("Behind", "it catches up with its sources")


def _compared(draft: Draft, report: DriverState, rules: Standby) -> _Judged:
    """Beside the old version; one that has not answered for long is nothing to go by."""
    old = draft.report
    if old is None and is_believed(draft):
        return _Judged("Behind", "it keeps up, and is compared once the old version answers")
    if old is None:
        return _Judged("Good", "it keeps up, and the old version does not answer")
    most = old.state_bytes * rules.max_state_percent // 100 + _SLACK_BYTES
    if report.state_bytes > most:
        return _Judged(
            "Worse",
            f"its state has {report.state_bytes} bytes, and the old version's {old.state_bytes}: "
            f"more than upgrade.standby.maxStatePercent {rules.max_state_percent} allows",
        )
    rates = _compared_rates(draft, report, old, rules.min_rate_percent)
    if rates.verdict == "Good" and rules.compare_outputs is not None:
        rates = _compared_rows(draft, report, old, rules.compare_outputs) or rates
    percent = rules.max_output_difference_percent
    if percent is None or rates.verdict != "Good":
        return rates
    new, its = report.load, old.load
    # What it gave while it caught up was given for older rows; and windows give rows in bursts, so
    # that little of either version says nothing.
    whole = new is not None and its is not None and new.whole and its.whole
    if new is None or its is None or not whole or _kept_up_for(draft) < new.operator_seconds:
        text = (
            "it keeps up, and what both versions give is compared once all of "
            "scaling.autoscaler.window is since then; a shorter one, or a longer "
            "upgrade.standby.catchUpTimeout, gives it time"
        )
        return _Judged("Behind", text)
    return _compared_output(new, its, percent) or rates


def _kept_up_for(draft: Draft) -> float:
    """Seconds."""
    known = draft.operation.standby
    since = known.caught_up_since if known is not None else None
    return (draft.now - draft.attended(since)).total_seconds() if since is not None else 0.0


def _compared_rates(draft: Draft, report: DriverState, old: DriverState, percent: int) -> _Judged:
    """Over all the time that it has kept up: for a moment either may have nothing to read."""
    known = draft.operation.standby
    if known is None or known.counted is None or known.caught_up_since is None:
        return _Judged("Behind", "it keeps up, and is not compared yet")
    seconds = max(_kept_up_for(draft), 1.0)
    began, now = known.counted, _counts(report, old)
    rows, old_rows = now.rows - began.rows, now.old_rows - began.old_rows
    epochs = now.epoch - began.epoch
    # Its epoch under way counts for nothing yet, and may be as large as those before.
    most = rows * (epochs + 1) / max(epochs, 1)
    if most >= old_rows * percent / 100:
        return _Judged("Good", f"it takes {rows / seconds:.0f} input rows a second")
    if old.busy_ratio > _IDLE:
        return _Judged("Behind", "it keeps up, and is compared once the old version does as well")
    if min(epochs, now.old_epoch - began.old_epoch) < _EPOCHS:
        text = f"it keeps up, and is compared once both have had {_EPOCHS} epochs meanwhile"
        return _Judged("Behind", text)
    return _Judged(
        "Worse",
        f"it took {rows / seconds:.0f} input rows a second for {seconds:.0f} s, and the old "
        f"version {old_rows / seconds:.0f}: less than upgrade.standby.minRatePercent {percent} "
        f"asks for",
    )


def _compared_rows(
    draft: Draft, report: DriverState, old: DriverState, rules: CompareOutputs
) -> _Judged | None:
    """By the rows of both; None if no more of them differ than may."""
    if waits := _no_sample_yet(draft):
        return _Judged("Behind", waits)
    new, its, field = report.sample, old.sample, "upgrade.standby.compareOutputs"
    if new is None or its is None:
        return None  # told above
    if why := not_comparable(new, its):
        return _Judged("Worse", f"its output cannot be compared: {why}; leave {field} out")
    known = [{one.uid for one in each.sinks or ()} for each in (report, old)]
    found = compared(new, its, known[0] & known[1])
    if sum(one.rows for one in found) < rules.min_rows:
        text = (
            f"it keeps up, and its output is compared once both versions have given {field}."
            f"minRows {rules.min_rows} rows of the sample and read on since; more of samplePercent "
            f"or catchUpTimeout, or fewer minRows, bring that about"
        )
        return _Judged("Behind", text)
    worst = max(found, key=lambda one: one.differing / max(one.rows, 1))
    if not worst.exceeds(rules.max_differing_percent):
        return None
    return _Judged(
        "Worse",
        f"its output is another one: {worst.told}, and {field}.maxDifferingPercent "
        f"{rules.max_differing_percent} allows fewer: name columns that may differ in "
        f"exceptColumns, or leave {field} out if all of that is on purpose",
    )


def _compared_output(load: LoadReport, old: LoadReport, percent: int) -> _Judged | None:
    """By what operators of both versions give for each row; None if no more than that differs.

    Which come out when depends on where epochs were cut; see `outputs` for rows themselves.
    """
    before = {one.uid: one for one in old.operators}
    for one in load.operators:
        other = before.get(one.uid)
        if other is None or min(one.rows_in, other.rows_in) < _ENOUGH_ROWS:
            continue
        gives, gave = one.rows_out / one.rows_in, other.rows_out / other.rows_in
        if abs(gives - gave) > gave * percent / 100:
            return _Judged(
                "Worse",
                f"its operator {one.uid} gives {gives:.2f} rows for each that it takes, and the "
                f"old version's {gave:.2f}: upgrade.standby.maxOutputDifferencePercent {percent} "
                f"allows less of a difference",
            )
    return None


def _stop_old(draft: Draft, text: str) -> None:
    """Stop the old version with a last checkpoint; the rest is `fencing`."""
    operation = draft.operation
    draft.move("Snapshotting", mode_used="LastCheckpoint")
    aim(draft, "Checkpoint")
    draft.tell("Normal", "StandbyReady", f"The new version kept up: {text}", operation.id)
