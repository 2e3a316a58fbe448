"""What holds in every world: random worlds, and random lives on a stage."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from moorage_testing.world_parts import UID
from moorage_testing.worlds import START, Stage, job_spec, store_of

from moorage_api import Problem
from moorage_api.changes import spec_hash
from moorage_api.driver import CheckpointSummary, DriverEnd, DriverState, RequestView
from moorage_api.status import (
    AttemptStatus,
    JobStatus,
    Leaving,
    OperationStatus,
    Reconciliation,
    Restarts,
    RestorePointStatus,
)
from moorage_operator.decide import decide_job
from moorage_operator.decide.specs import revision_name
from moorage_operator.plan import StartDriver
from moorage_operator.world import (
    ContainerEnd,
    PodView,
    Revision,
    StoreView,
    Unreadable,
)

ONE = job_spec()
SPECS = [
    ONE,
    job_spec(image="registry.example/clicks:2"),
    job_spec(desiredState="Suspended"),
    job_spec(scaling={"parallelism": 4, "maxParallelism": 16}),
    job_spec(restore={"mode": "Empty", "nonce": 1}),
    job_spec(restore={"mode": "Path", "path": "s3://a/b", "nonce": 2}),
    job_spec(restore={"mode": "Snapshot", "snapshotName": "clicks-a", "nonce": 1}),
    job_spec(upgrade={"mode": "Stateless"}, image="registry.example/clicks:3"),
    job_spec(upgrade={"fallback": "Wait"}, image="registry.example/clicks:4"),
    job_spec(upgrade={"fallback": "Fail"}, image="registry.example/clicks:5"),
    job_spec(failurePolicy={"maxRestarts": 0}),
    job_spec(executor={"instances": 3}),
    job_spec(observability={"metrics": {"podMonitor": True}}),
    job_spec(
        state={"checkpointDir": "s3://state/new", "savepointDir": "s3://savepoints/clicks"},
        restore={"mode": "Path", "path": "s3://a/b", "nonce": 3},
    ),
    job_spec(deletion={"policy": "Delete", "finalSnapshot": "None"}),
]


def _revision(spec):
    digest = spec_hash(spec)
    return Revision(revision_name("clicks", digest), 1, digest, spec)


REVISIONS = {_revision(spec).name: _revision(spec) for spec in SPECS}

moments = st.integers(-2000, 2000).map(lambda seconds: START + timedelta(seconds=seconds))
maybe = st.none() | moments
names = st.sampled_from(["", *REVISIONS])
points = st.none() | st.builds(
    RestorePointStatus,
    mode=st.sampled_from(["Latest", "Path"]),
    path=st.just("s3://a/b"),
    order_id=st.sampled_from(["", "nonce-0-aa", "1-1-0a1b2c3d"]),
)
attempts = st.builds(
    AttemptStatus,
    number=st.integers(0, 3),
    revision=names,
    restore_point=points,
    driver_uid=st.sampled_from(["", "u1", "u2"]),
    started_at=maybe,
    running_since=maybe,
    outcome=st.sampled_from(["", "", "Finished", "Stopped", "Failed"]),
    outcome_reason=st.sampled_from(["", "DriverLost", "NodeLost", "AdoptRequired", "Rebuilt"]),
    ended_at=maybe,
    missing_since=maybe,
    node_lost_since=maybe,
)
operations = st.none() | st.builds(
    OperationStatus,
    id=st.just("1-1"),
    type=st.sampled_from(
        ["Deploy", "Upgrade", "Rescale", "Suspend", "Resume", "Recover", "Redeploy", "Delete"]
    ),
    step=st.sampled_from(
        ["Rescaling", "Snapshotting", "Stopping", "Fencing", "Starting", "Verifying"]
    ),
    target_revision=names,
    snapshot_request_id=st.sampled_from(["", "1-1-stop"]),
    snapshot_name=st.sampled_from(["", "upgrade-1-1-0a1b2c3d"]),
    stop_mode=st.sampled_from(["", "Savepoint", "Checkpoint", "None"]),
    mode_used=st.sampled_from(["", "Savepoint", "LastCheckpoint", "Stateless"]),
    # By the names that hypothesis reads of the model: others of its own would win over these.
    startedAt=moments,
    stepStartedAt=moments,
    deadline=maybe,
    not_before=maybe,
    retries=st.integers(0, 5),
    reason=st.sampled_from(["SpecChanged", "RestartRequested", "Retain"]),
)
statuses = st.builds(
    JobStatus,
    lineage_owner_uid=st.sampled_from([UID, UID, UID, "", "other"]),
    reconciliation=st.builds(
        Reconciliation,
        current_revision=names,
        restore_nonce=st.integers(0, 2),
        desired_state=st.sampled_from(["", "Running", "Suspended"]),
    ),
    operation=operations,
    operation_counter=st.integers(1, 5),
    attempt=attempts,
    restarts=st.builds(Restarts, next_retry_at=maybe, restore_failures=st.integers(0, 3)),
    next_restore=points,
    blocked_reason=st.sampled_from(["", "", "AdoptRequired", "InvalidSpec", "MaxRestartsExceeded"]),
    blocked_generation=st.integers(0, 3),
    finished_at=maybe,
    leaving=st.lists(st.builds(Leaving, revision=names, retry_at=maybe), max_size=2).map(tuple),
)
ends = st.none() | st.builds(
    DriverEnd,
    outcome=st.sampled_from(["Finished", "Stopped", "Failed"]),
    code=st.sampled_from(["", "fenced", "user_function", "restore_point_not_found", "new"]),
)
containers = st.none() | st.builds(
    ContainerEnd, st.sampled_from([0, 1, 6, 137]), st.sampled_from(["", "OOMKilled"])
)
phases = st.sampled_from(["Pending", "Running", "Succeeded", "Failed", "Unknown", "Odd"])


@st.composite
def pods(draw, role):
    number = draw(st.integers(0, 3))
    return PodView(
        name=f"clicks-{number}-{role}-{draw(st.integers(0, 2))}",
        uid=draw(st.sampled_from(["u1", "u2", "u3"])),
        role=role,
        attempt=number,
        phase=draw(phases),
        owned=draw(st.booleans()),
        reason=draw(st.sampled_from(["", "Evicted"])),
        ended=draw(containers),
        end=draw(ends),
        disrupted=draw(st.sampled_from(["", "evicted"])),
        waiting=draw(st.sampled_from(["", "ImagePullBackOff"])),
        node_ready=draw(st.sampled_from([None, True, False])),
        created_at=draw(maybe),
        deleted_at=draw(maybe),
    )


unreadable = st.builds(Unreadable, st.just("ApiUnavailable"), st.just("no answer"), maybe)
drivers = unreadable | st.lists(pods("driver"), max_size=3).map(tuple)
RESCALED = tuple(
    RequestView(request_id="1-1-stop", kind="Rescale", state=state)
    for state in ("Completed", "Failed")
)
executors = unreadable | st.lists(pods("executor"), max_size=2).map(tuple)
reports = (
    st.none()
    | unreadable
    | st.builds(
        DriverState,
        attempt=st.integers(0, 3),
        job_uid=st.just(UID),
        phase=st.sampled_from(["starting", "restoring", "running"]),
        running_since=maybe,
        last_progress_time=maybe,
        last_move_time=maybe,
        answered_at=maybe,
        epoch_since=maybe,
        epoch_seconds=st.sampled_from([0.0, 1200.0]),
        tasks_running=st.integers(0, 2),
        executors_desired=st.integers(0, 2),
        executors_ready=st.integers(0, 2),
        requests=st.sampled_from([(), RESCALED]),
        storage_error=st.sampled_from(["", "away"]),
        last_checkpoint=st.none()
        | st.builds(CheckpointSummary, id=st.just(7), completedAt=moments),
    )
)
stores = st.sampled_from(
    [
        None,
        Unreadable("StoreUnavailable", "timeout"),
        Unreadable("StoreDenied", "403"),
        StoreView(exists=False),
        store_of(),
        store_of(newest=7),
        store_of("other", newest=7),
        replace(store_of("other", newest=7), released=True),
    ]
)


@st.composite
def worlds(draw):
    stage = Stage(
        spec=draw(st.sampled_from([None, *SPECS])),
        generation=draw(st.integers(1, 4)),
        status=draw(statuses),
        revisions=draw(st.sampled_from([{}, REVISIONS])),
        finalizers=draw(st.sampled_from([(), ("moorage.dev/operator",)])),
        deleted_at=draw(st.none() | moments),
        report=draw(reports),
        store=draw(stores),
        rival=draw(st.sampled_from(["", "default/elder"])),
        problems=draw(st.sampled_from([(), (Problem("spec.image", "is odd", "mend it"),)])),
        annotations=draw(
            st.dictionaries(
                st.sampled_from(
                    ["restart", "paused", "skip-final-savepoint", "adopt-lineage", "savepoint"]
                ),
                st.sampled_from(["true", "1", "lineage-1"]),
                max_size=2,
            )
        ),
        namespace_terminating=draw(st.booleans()),
    )
    seen = stage.world()
    return replace(seen, drivers=draw(drivers), executors=draw(executors))


pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")

# A world has some hundred parts: shrinking one takes minutes, and the message shows all of it.
PHASES = (Phase.explicit, Phase.generate)
slow = settings(
    max_examples=200, deadline=None, phases=PHASES, suppress_health_check=list(HealthCheck)
)


@slow
@given(worlds())
def test_no_world_is_too_odd_and_no_start_is_unsafe(world):
    plan = decide_job(world)
    assert plan.again_after > 0
    assert plan.status.attempt.number >= world.status.attempt.number
    starts = [effect for effect in plan.effects if isinstance(effect, StartDriver)]
    assert len(starts) <= 1
    for start in starts:
        number = start.order.attempt
        assert number == plan.status.attempt.number
        assert start.revision in world.revisions
        assert not [p for p in world.drivers if p.owned and not p.terminal and p.attempt < number]
        assert not [p for p in world.executors if not p.terminal]
        assert world.meta.deleted_at is None
        assert not world.namespace_terminating
        assert world.meta.annotation("paused") != "true"
        if start.order.restore.mode == "Empty":
            acknowledged = world.spec is not None and world.spec.restore.acknowledge_state_loss
            store = world.store
            proven = isinstance(store, StoreView) and not (store.exists and store.newest)
            assert acknowledged or proven


@slow
@given(worlds())
def test_an_unchanged_world_settles_within_few_passes_and_is_then_left_alone(world):
    for _ in range(8):
        plan = decide_job(world)
        if plan.status == world.status:
            break
        world = replace(world, status=plan.status)
    again = decide_job(world)
    assert again.status == world.status
    assert again.effects == plan.effects
    assert again.events == plan.events
    if world.operator_too_old == "":
        told = {event.key for event in again.events}
        # These stand for as long as their annotation does; the key makes one event of them.
        standing = ("Savepoint", "AnnotationIgnored", "LocalVolumeFull")
        assert not {key for key in told if not key.startswith(standing)}


@slow
@given(worlds())
def test_a_decision_depends_on_nothing_but_the_world(world):
    assert decide_job(world) == decide_job(world)


@slow
@given(worlds())
def test_deletion_ends_whatever_the_world_is_like(world):
    """Time passes and nothing else happens: store tasks never end, pods never go."""
    world = replace(
        world,
        meta=replace(world.meta, deleted_at=START, finalizers=("moorage.dev/operator",)),
        drivers=() if isinstance(world.drivers, Unreadable) else world.drivers,
        executors=() if isinstance(world.executors, Unreadable) else world.executors,
        now=START,
    )
    if world.meta.annotation("paused") == "true" and not world.namespace_terminating:
        return
    for _ in range(40):
        plan = decide_job(world)
        if any(type(effect).__name__ == "SetFinalizer" for effect in plan.effects):
            return
        world = replace(world, status=plan.status, now=world.now + timedelta(seconds=60))
    raise AssertionError(f"the finalizer stays: {world.status}")


ACTS = st.sampled_from(
    [
        "edit",
        "suspend",
        "resume",
        "bad",
        "restart",
        "run",
        "fail",
        "oom",
        "evict",
        "vanish",
        "answer",
        "refuse",
        "deaf",
        "store_down",
        "store_up",
        "wait",
        "long",
        "crash",
        "wipe",
        "rescale",
        "finish",
    ]
)


@settings(max_examples=40, deadline=None, phases=PHASES, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(ACTS, st.integers(0, 9)), max_size=25))
def test_in_a_random_life_numbers_only_grow_and_the_job_comes_back(life):
    stage = Stage()
    highest = 0
    for act, number in life:
        _play(stage, act, number)
        known = max((pod.attempt for pod in stage.drivers.values()), default=0)
        forgotten = stage.status == JobStatus() and known < highest
        stage.settle()
        if forgotten:
            # With the status gone, and the newest pod, nothing can be taken for another of its
            # number.
            highest, stage.orders = stage.status.attempt.number, []
            continue
        orders = [order.attempt for order in stage.orders]
        assert orders == sorted(orders)
        assert stage.status.attempt.number >= highest
        assert not [order for order in stage.orders if order.restore.mode == "Empty"]
        highest = stage.status.attempt.number
    _comes_back(stage)


def _play(stage, act, number):  # noqa: C901, PLR0912  one case an act
    lives = any(not pod.terminal for pod in stage.drivers.values())
    current = f"clicks-{stage.status.attempt.number}-driver" in stage.drivers
    match act:
        case "edit":
            stage.edit(image=f"registry.example/clicks:{number}")
        case "rescale":
            stage.edit(scaling={"parallelism": number + 1, "maxParallelism": 16})
        case "suspend":
            stage.edit(desiredState="Suspended")
        case "resume":
            stage.edit(desiredState="Running")
        case "bad":
            stage.edit_badly()
        case "restart":
            stage.annotate(restart=str(number))
        case "run" if lives and current:
            stage.say_running()
        case "fail" if lives and current:
            stage.end("Failed", "user_function")
        case "finish" if lives and current:
            stage.end("Finished")
        case "oom" if lives and current:
            stage.end_pod(137, reason="OOMKilled")
        case "evict" if lives and current:
            stage.end_pod(143, disrupted="evicted")
        case "vanish":
            stage.drivers.clear()
            stage.report = None
        case "answer" if lives and current and stage.asked:
            stage.stop_as_asked()
        case "refuse" if stage.asked:
            stage.fail_request()
        case "deaf" if lives:
            stage.report = Unreadable("EndpointUnreachable", "no answer", stage.now)
        case "store_down":
            stage.store = Unreadable("StoreUnavailable", "timeout")
        case "store_up":
            stage.store = store_of(newest=7)
        case "wait":
            stage.now += timedelta(seconds=30 * number)
        case "long":
            stage.now += timedelta(hours=1)
        case "crash":
            stage.pass_(crash="status" if number % 2 else "first")
        case "wipe":
            stage.status = stage.status if stage.asked else JobStatus()


def _comes_back(stage):
    """However it was treated: a good spec, time, and working drivers are all that it takes."""
    stage.store = store_of(newest=7)
    stage.edit(desiredState="Running", image="registry.example/clicks:good")
    for _ in range(60):
        stage.settle()
        for name, pod in list(stage.drivers.items()):
            if pod.deleted_at is not None and not pod.terminal:
                ended = ContainerEnd(0, "Completed", finished_at=stage.now)
                stage.drivers[name] = replace(pod, phase="Failed", ended=ended)
        if stage.status.operation is None and stage.status.phase in ("Running", "Stable"):
            break
        name = f"clicks-{stage.status.attempt.number}-driver"
        if name in stage.drivers and not stage.driver.terminal:
            if stage.asked and isinstance(stage.report, DriverState):
                stage.stop_as_asked()
            elif stage.driver.phase == "Pending" or stage.report is None:
                stage.say_running()
        stage.now += timedelta(seconds=60)
    assert stage.status.phase in ("Running", "Stable"), stage.status
    running = stage.revisions[stage.status.attempt.revision].spec
    assert running.image == "registry.example/clicks:good"
