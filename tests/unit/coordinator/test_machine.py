"""The coordinator against a plain model, in random orders of everything that can happen."""

import random
from itertools import count
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from moorage_state.coordinator import (
    CheckpointFailureReason,
    CheckpointProperties,
    CheckpointRetentionPolicy,
    FailJob,
    FinalizeCheckpoint,
    JobEnd,
    NotifyCheckpointComplete,
    TriggerTasks,
)
from moorage_state.coordinator.checkpoint import MessageOutcome
from moorage_state.errors import Fenced, StoreUnavailable, UserError

POLICY = CheckpointRetentionPolicy.RETAIN_ON_FAILURE
KINDS = {
    "checkpoint": CheckpointProperties.for_checkpoint(POLICY),
    "forced": CheckpointProperties(forced=True),
    "savepoint": CheckpointProperties.for_savepoint(),
    "stop": CheckpointProperties.for_sync_savepoint(terminate=True),
}
COUNTED = {
    "IO_EXCEPTION",
    "CHECKPOINT_ASYNC_EXCEPTION",
    "CHECKPOINT_EXPIRED",
    "CHECKPOINT_DECLINED",
    "FINALIZE_CHECKPOINT_FAILURE",
}
DECLINES = [
    CheckpointFailureReason.CHECKPOINT_DECLINED,
    CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION,
    CheckpointFailureReason.CHECKPOINT_DECLINED_TASK_NOT_READY,
    CheckpointFailureReason.TASK_CHECKPOINT_FAILURE,
]
FINALIZE_ERRORS = [StoreUnavailable("down"), Fenced("newer"), UserError("no"), OSError("full")]
PICK = st.integers(0, 1000)


class FlakyCounter:
    """Ids that can be claimed, but for once in a while."""

    def __init__(self):
        self.last = 0
        self.broken = False

    def get_and_increment(self):
        if self.broken:
            raise StoreUnavailable("down")
        self.last += 1
        return self.last


class Oracle:
    """Failures in a row, told in the words of the rules and not of the code."""

    def __init__(self, tolerable):
        self.tolerable = tolerable
        self.in_a_row = 0
        self.seen = set()
        self.newest_success = 0
        self.job_failures = 0

    def ended(self, checkpoint_id, properties, error, *, on_task):
        if error is None:
            if checkpoint_id > self.newest_success:
                self.newest_success, self.in_a_row, self.seen = checkpoint_id, 0, set()
        elif on_task and properties.is_synchronous:
            self.job_failures += 1
        elif on_task or not properties.is_savepoint:
            self.failed(checkpoint_id, error.reason.name)

    def failed(self, checkpoint_id, name):
        old = checkpoint_id is not None and checkpoint_id < self.newest_success
        if name not in COUNTED or old or checkpoint_id in self.seen:
            return
        if checkpoint_id is not None:
            self.seen.add(checkpoint_id)
        self.in_a_row += 1
        if self.in_a_row > self.tolerable:
            self.job_failures, self.in_a_row, self.seen = self.job_failures + 1, 0, set()


class Machine(RuleBasedStateMachine):
    """A driver, its tasks and the model of what must be so."""

    harness: ClassVar[Any]

    @initialize(
        max_concurrent=st.integers(1, 3),
        tolerable=st.integers(0, 2),
        retain=st.integers(1, 3),
        min_pause=st.sampled_from([0.0, 5.0]),
        aligned=st.sampled_from([None, 8.0]),
        coalesce=st.booleans(),
    )
    def begin(self, max_concurrent, tolerable, retain, min_pause, aligned, coalesce):
        self.counter = FlakyCounter()
        self.h = type(self).harness(
            retain=retain,
            tolerable=tolerable,
            ids=self.counter,
            interval=10.0,
            timeout=30.0,
            min_pause=min_pause,
            max_concurrent=max_concurrent,
            aligned_timeout=aligned,
            coalesce_periodic=coalesce,
            retention=POLICY,
        )
        self.oracle = Oracle(tolerable)
        self.retain = retain
        self.numbers = count()
        self.asked = []  # futures of requests that this driver made
        self.answers = {}  # by future, how often it ended
        self.started = {}  # by id, the properties
        self.base = {}  # by id, what tasks may reference
        self.failed = set()
        self.completed = []  # ids of checkpoints, in the order in which they completed
        self.finalizing: Any = None
        self.last_completion = None
        self.on_task = False
        self.status = None

    # What the driver sees.

    def see(self):
        """Carry out the effects, checking each against what must be so."""
        for effect in self.h.drain():
            match effect:
                case TriggerTasks():
                    self.sees_trigger(effect)
                case FinalizeCheckpoint():
                    assert self.finalizing is None, "two finalizations at once"
                    self.finalizing = effect
                case NotifyCheckpointComplete(checkpoint_id=checkpoint_id):
                    assert checkpoint_id in self.started
                case FailJob():
                    self.oracle.job_failures -= 1

    def sees_trigger(self, effect):
        checkpoint_id = effect.checkpoint_id
        assert not self.started or checkpoint_id > max(self.started), "ids only grow"
        pending = self.h.coordinator._life.pending[checkpoint_id]
        if not pending.properties.forced:
            assert len(self.h.coordinator.pending_ids) <= self.h.config.max_concurrent
        if pending.future not in self.asked and self.last_completion is not None:
            pause = self.last_completion + self.h.config.min_pause
            assert self.h.now >= pause, "a periodic checkpoint within the pause"
        self.started[checkpoint_id] = pending.properties
        self.base[checkpoint_id] = effect.base_id
        assert effect.base_id == (0 if pending.properties.is_savepoint else self.newest)
        pending.future.add_done_callback(
            lambda future: self.sees_end(checkpoint_id, pending.properties, future)
        )

    def sees_end(self, checkpoint_id, properties, future):
        error = future.exception()
        if error is not None:
            self.failed.add(checkpoint_id)
        self.oracle.ended(checkpoint_id, properties, error, on_task=self.on_task)

    def call(self, action, *args, on_task=False, **kwargs):
        """Call the coordinator and see what comes of it."""
        self.on_task = on_task
        result = action(*args, **kwargs)
        self.on_task = False
        self.see()
        return result

    def any_started(self, pick):
        ids = sorted(self.started)
        return ids[pick % len(ids)]

    @property
    def alive(self):
        return self.status is None

    @property
    def newest(self):
        return max(self.completed, default=0)

    @property
    def bases(self):
        """What the driver keeps from deletion: the bases of what is under way and of the next."""
        bases = {self.base[one] for one in self.h.coordinator.pending_ids if one in self.base}
        return bases.union({self.h.coordinator.base_id}) - {0}

    # What can happen.

    @rule(kind=st.sampled_from(sorted(KINDS)))
    def asks(self, kind):
        future = self.ask(KINDS[kind])
        if not self.alive:
            assert future.exception().reason.name.startswith("CHECKPOINT_COORDINATOR_")

    def ask(self, properties):
        submit = self.h.coordinator._launcher.submit

        def remembered(*args, **kwargs):
            # The driver must know its future before the trigger comes out.
            future = submit(*args, **kwargs)
            self.asked.append(future)
            return future

        self.h.coordinator._launcher.submit = remembered
        try:
            future = self.call(self.h.coordinator.trigger_checkpoint, properties)
        finally:
            self.h.coordinator._launcher.submit = submit
        self.answers[future] = 0

        def answered(_):
            self.answers[future] += 1

        future.add_done_callback(answered)
        return future

    @precondition(lambda self: self.alive and not self.h.coordinator.queued)
    @rule(kind=st.sampled_from(sorted(KINDS)))
    def asks_while_no_id_can_be_claimed(self, kind):
        self.counter.broken = True
        future = self.ask(KINDS[kind])
        self.counter.broken = False
        error = future.exception()
        if error is not None and error.reason is CheckpointFailureReason.IO_EXCEPTION:
            self.oracle.ended(None, KINDS[kind], error, on_task=False)

    @rule(seconds=st.sampled_from([0.5, 3.0, 10.0, 31.0]))
    def time_passes(self, seconds):
        self.h.now += seconds
        self.call(self.h.coordinator.on_time, self.h.now)

    @rule()
    def the_alarm_rings(self):
        wake = self.h.coordinator.next_wake
        if wake is not None:
            self.h.now = max(self.h.now, wake)
        self.call(self.h.coordinator.on_time, self.h.now)
        again = self.h.coordinator.next_wake
        assert again is None or again > self.h.now, "it would ring for ever"

    @rule()
    def the_boundary_comes(self):
        for checkpoint_id in self.h.coordinator.pending_ids[-1:]:
            self.call(self.h.coordinator.triggered, checkpoint_id)

    @precondition(lambda self: self.started)
    @rule(pick=PICK)
    def a_trigger_fails(self, pick):
        self.call(self.h.coordinator.trigger_failed, self.any_started(pick), error=OSError("x"))

    @precondition(lambda self: self.started)
    @rule(pick=PICK, task=st.integers(0, 1))
    def a_task_acknowledges_whatever_it_was(self, pick, task):
        self.acknowledges(self.any_started(pick), task)

    @rule(kind=st.sampled_from(sorted(KINDS)))
    def a_checkpoint_goes_through(self, kind):
        self.ask(KINDS[kind])
        self.all_goes_on()

    @rule()
    def all_goes_on(self):
        self.the_boundary_comes()
        self.all_tasks_acknowledge()
        while self.finalizing is not None:
            self.it_is_in_the_log()

    @rule()
    def all_tasks_acknowledge(self):
        for checkpoint_id in self.h.coordinator.pending_ids:
            for task in range(2):
                self.acknowledges(checkpoint_id, task)

    def acknowledges(self, checkpoint_id, index):
        was_pending = checkpoint_id in self.h.coordinator.pending_ids
        state = f"s{next(self.numbers)}"
        outcome = self.call(self.h.ack, checkpoint_id, self.h.tasks[index], state)
        if not self.alive:
            assert outcome is MessageOutcome.SHUT_DOWN
        elif was_pending:
            assert outcome in (MessageOutcome.ACCEPTED, MessageOutcome.DUPLICATE)
        else:
            assert outcome is MessageOutcome.LATE

    @rule(pick=PICK, task=st.integers(0, 1), reason=st.sampled_from(DECLINES))
    def a_task_declines(self, pick, task, reason):
        known = [*self.h.coordinator.pending_ids, *self.started, 10**6]
        checkpoint_id = known[pick % len(known)]
        self.call(self.h.decline, checkpoint_id, reason, self.h.tasks[task], on_task=True)

    @precondition(lambda self: self.finalizing is not None)
    @rule()
    def it_is_in_the_log(self):
        effect, self.finalizing = self.finalizing, None
        completed = effect.completed(self.h.now, f"chk-{effect.checkpoint_id}")
        if not effect.properties.is_savepoint:
            self.h.lineage.complete(effect.checkpoint_id)
            self.completed.append(effect.checkpoint_id)
        self.last_completion = self.h.now
        self.call(self.h.coordinator.finalized, effect.checkpoint_id, completed)

    @precondition(lambda self: self.finalizing is not None)
    @rule(error=st.sampled_from(FINALIZE_ERRORS))
    def it_cannot_be_written(self, error):
        effect, self.finalizing = self.finalizing, None
        self.call(self.h.coordinator.finalize_failed, effect.checkpoint_id, error)

    @precondition(lambda self: self.completed)
    @rule()
    def old_ones_are_let_go(self):
        kept = {*self.completed[-self.retain :], *self.bases}
        before = {one.checkpoint_id for one in self.h.store.checkpoints}
        gone = set(self.h.store.subsume(pinned=self.bases).checkpoint_ids)
        assert gone == before - kept

    @precondition(lambda self: self.alive)
    @rule()
    def the_scheduler_starts(self):
        self.call(self.h.coordinator.start_checkpoint_scheduler)

    @rule()
    def the_scheduler_stops(self):
        self.call(self.h.coordinator.stop_checkpoint_scheduler)

    @precondition(lambda self: self.alive and len(self.started) > 8)
    @rule(status=st.sampled_from(JobEnd))
    def the_job_ends(self, status):
        self.status = status
        self.call(self.h.coordinator.shutdown, status)
        assert set(self.h.coordinator.pending_ids) <= (
            {self.finalizing.checkpoint_id} if self.finalizing else set()
        )

    # What must be so at any time.

    @invariant()
    def the_failures_in_a_row_are_those_of_the_rules(self):
        if hasattr(self, "oracle"):
            assert self.h.failures.count == self.oracle.in_a_row
            assert self.oracle.job_failures == 0

    @invariant()
    def the_log_has_all_that_is_built_on(self):
        if hasattr(self, "h"):
            assert self.bases <= {one.checkpoint_id for one in self.h.store.checkpoints}
            if self.completed:
                assert self.h.latest_id == self.completed[-1]

    @invariant()
    def a_future_ends_once(self):
        if hasattr(self, "answers"):
            assert all(n == int(future.done) for future, n in self.answers.items())

    def teardown(self):
        if not hasattr(self, "h"):
            return
        if self.alive:
            self.the_job_ends(JobEnd.FAILED)
        if self.finalizing is not None:
            self.it_is_in_the_log()
        assert all(n == 1 for n in self.answers.values())
        assert not self.h.coordinator.pending_ids
        assert self.h.coordinator.next_wake is None
        ended = self.h.tracker.completed_ids + self.h.tracker.failed_ids
        assert sorted(ended) == sorted(self.started)


@pytest.fixture
def machine(make):
    Machine.harness = make
    return Machine


def test_any_order_of_events_keeps_the_rules(machine):
    quick = settings(
        max_examples=60,
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    run_state_machine_as_test(machine, settings=quick)


def walk(machine, seed, steps):
    """A long way through the same rules: progress is likelier than trouble."""
    rng = random.Random(seed)

    def pick():
        return rng.randrange(1000)

    one = machine()
    one.begin(
        max_concurrent=rng.randint(1, 3),
        tolerable=rng.randint(0, 2),
        retain=rng.randint(1, 3),
        min_pause=rng.choice([0.0, 5.0]),
        aligned=rng.choice([None, 8.0]),
        coalesce=rng.random() < 0.5,
    )
    kinds = ["checkpoint", "checkpoint", "checkpoint", "forced", "savepoint", "stop"]
    likely = [
        lambda: one.asks(rng.choice(kinds)),
        one.the_boundary_comes,
        lambda: one.a_task_acknowledges_whatever_it_was(pick(), rng.randrange(2)),
        one.all_tasks_acknowledge,
        lambda: one.finalizing and one.it_is_in_the_log(),
        lambda: one.completed and one.old_ones_are_let_go(),
        one.the_alarm_rings,
        lambda: one.time_passes(rng.choice([0.5, 3.0])),
    ]
    rare = [
        lambda: one.time_passes(31.0),
        lambda: one.a_task_declines(pick(), rng.randrange(2), rng.choice(DECLINES)),
        lambda: one.finalizing and one.it_cannot_be_written(rng.choice(FINALIZE_ERRORS)),
        lambda: one.a_trigger_fails(pick()),
        one.the_scheduler_starts,
        one.the_scheduler_stops,
    ]
    one.the_scheduler_starts()
    one.asks("checkpoint")
    for _ in range(steps):
        rng.choice(rare if rng.random() < 0.05 else likely)()
        one.the_failures_in_a_row_are_those_of_the_rules()
        one.the_log_has_all_that_is_built_on()
        one.a_future_ends_once()
    one.teardown()
    return len(one.completed)


@pytest.mark.parametrize("seed", range(30))
def test_a_long_way_keeps_the_rules(machine, seed):
    assert walk(machine, seed, 300) > 3


@pytest.mark.soak
def test_any_order_of_events_keeps_the_rules_for_long(machine):
    long = settings(max_examples=2000, stateful_step_count=100, deadline=None)
    run_state_machine_as_test(machine, settings=long)
