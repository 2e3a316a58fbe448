"""Whatever happens in whatever order: the promises that must hold all the time, and in the end."""

import asyncio
import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from moorage_testing.kube import ApiRefusal
from moorage_testing.world import World
from moorage_testing.world.scene import SAVEPOINTS

from moorage_operator.ports import ApiUnavailable, Conflict

pytestmark = [pytest.mark.scenarios, pytest.mark.timeout(900)]

NAMES = ("a", "b", "c")
"""Of the savepoints that people ask for."""


class JobsLife(RuleBasedStateMachine):
    """People edit, fate kills, stores fail, operators die or are two."""

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.world = World()
        self.world.apply()
        self.images = 1
        self.nonces = 0
        self.edits = 0
        self.deleted = False

    def teardown(self):
        try:
            self.calm_down()
        finally:
            self.loop.close()
            self.world.buckets.forget()

    def go(self, seconds):
        self.loop.run_until_complete(self.world.run(seconds))

    def calm_down(self):
        """Everything works again: then the job must run, be suspended as asked, or be gone."""
        world = self.world
        world.buckets.down = False
        world.drivers.habits.deaf = world.drivers.habits.stuck = False
        world.drivers.habits.savepoints_fail = 0
        world.drivers.habits.rescale_fails = False
        world.kubelet.image_error = world.kubelet.unschedulable = ""
        for node in list(world.kubelet.nodes):
            world.kubelet.find_node(node)
        for operator in world.operators[1:]:
            operator.retire()
        del world.operators[1:]
        for operator in world.operators:
            operator.cluster.heal()
        if world.object() is not None and not self.deleted:
            world.edit(failurePolicy={"maxRestarts": -1})
            world.annotate(restart=f"calm-{self.edits}", paused="false")
        self.go(10)
        self.loop.run_until_complete(self._settle())

    async def _settle(self):
        world = self.world
        if self.deleted:
            await world.until(lambda: world.object() is None and not world.drivers.living, 3600)
            for name, found in world.snapshots().items():
                if not found["metadata"].get("deletionTimestamp"):
                    world.api.delete("StatefulSparkSnapshot", world.namespace, name)
            await world.until(lambda: not world.snapshots(), 3600)
            return
        job = world.object()
        assert job is not None
        wanted = job["spec"].get("desiredState", "Running")
        if wanted == "Suspended":
            await world.until(lambda: world.phase() == "Suspended", 3600)
            assert not world.drivers.living
        else:
            await world.until(world.is_running, 3600)

    # -- fate

    @rule(seconds=st.integers(1, 40))
    def time_passes(self, seconds):
        self.go(seconds)

    @rule(how=st.sampled_from(["kill", "fail", "oom", "drain", "by_hand", "vanish"]))
    def a_driver_ends(self, how):
        pods = [p for p in self.world.pods() if not p["metadata"].get("deletionTimestamp")]
        living = {d.pod: d for d in self.world.drivers.living}
        pods = [p for p in pods if p["metadata"]["name"] in living]
        if not pods:
            return
        name = pods[-1]["metadata"]["name"]
        with suppress(ApiRefusal):
            if how == "kill":
                living[name].kill()
            elif how == "fail":
                living[name].fail("user_function", 3)
            elif how == "oom":
                self.world.kubelet.kill_container(name)
            elif how == "drain":
                self.world.kubelet.drain(name)
            elif how == "by_hand":
                self.world.api.delete("Pod", self.world.namespace, name)
            else:
                living[name].kill()
                self.world.api.delete("Pod", self.world.namespace, name, grace=0)

    @rule(down=st.booleans())
    def the_store_goes_or_comes(self, down):
        self.world.buckets.down = down

    @rule(deaf=st.booleans())
    def drivers_are_deaf_or_not(self, deaf):
        self.world.drivers.habits.deaf = deaf

    @rule(count=st.integers(0, 3))
    def savepoints_fail(self, count):
        self.world.drivers.habits.savepoints_fail = count

    @rule(fails=st.booleans())
    def drivers_refuse_other_widths_or_not(self, fails):
        self.world.drivers.habits.rescale_fails = fails

    @rule()
    def a_node_is_lost(self):
        if self.world.kubelet.nodes.get("node-1"):
            self.world.kubelet.lose_node()

    @rule()
    def the_node_is_back(self):
        self.world.kubelet.find_node()

    # -- the operator

    @rule()
    def the_operator_is_restarted(self):
        self.world.restart_operator()

    @rule(steps=st.integers(1, 12), when=st.sampled_from(["before", "after"]))
    def the_operator_dies_soon(self, steps, when):
        points = self.world.points
        points.crash_at, points.crash_when = points.count + steps, when

    @precondition(lambda self: len(self.world.operators) == 1)
    @rule()
    def a_second_operator_believes_to_lead(self):
        self.world.second_operator()

    @precondition(lambda self: len(self.world.operators) == 2)
    @rule()
    def the_second_operator_goes(self):
        self.world.operators.pop().retire()

    @rule(
        verb=st.sampled_from(["list", "get", "apply", "replace_status", "delete", "create"]),
        when=st.sampled_from(["before", "after"]),
        times=st.integers(1, 3),
        conflict=st.booleans(),
    )
    def the_api_server_stumbles(self, verb, when, times, conflict):
        error = Conflict("409") if conflict and verb == "replace_status" else ApiUnavailable("503")
        self.world.operator.cluster.fail(error, verb=verb, when=when, times=times)

    # -- people

    @precondition(lambda self: not self.deleted)
    @rule(
        what=st.sampled_from(
            [
                "image",
                "parallelism",
                "executors",
                "suspend",
                "resume",
                "back",
                "invalid",
                "policy",
                "fallback",
            ]
        )
    )
    def somebody_edits(self, what):
        world = self.world
        if world.object() is None:
            return
        self.edits += 1
        self.images += what == "image"
        changes: dict[str, dict[str, Any]] = {
            "image": {"image": f"registry.example/clicks:{self.images}"},
            "parallelism": {"scaling__parallelism": 1 + self.edits % 8},
            "executors": {"executor__instances": 1 + self.edits % 4},
            "suspend": {"desiredState": "Suspended"},
            "resume": {"desiredState": "Running"},
            "back": {"image": "registry.example/clicks:1"},
            "invalid": {"image": None},
            "policy": {"upgrade": {"mode": "LastCheckpoint"}},
            "fallback": {"upgrade": {"mode": "Savepoint", "fallback": "LastCheckpoint"}},
        }
        world.edit(**changes[what])
        if what == "invalid":
            self.go(5)
            world.edit(image=f"registry.example/clicks:{self.images}")

    @precondition(lambda self: not self.deleted)
    @rule(value=st.sampled_from(NAMES))
    def somebody_asks_for_a_savepoint(self, value):
        if self.world.object() is not None:
            self.world.annotate(savepoint=value)

    @precondition(lambda self: not self.deleted)
    @rule(value=st.sampled_from(NAMES))
    def somebody_asks_for_a_checkpoint(self, value):
        if self.world.object() is not None:
            self.world.annotate(checkpoint=value)

    @precondition(lambda self: not self.deleted)
    @rule(value=st.sampled_from(NAMES))
    def somebody_goes_back_to_a_savepoint(self, value):
        world = self.world
        if world.object() is None or not world.buckets.has_savepoint(f"{SAVEPOINTS}/{value}"):
            return
        self.nonces += 1
        path = f"{SAVEPOINTS}/{value}"
        world.edit(restore={"mode": "Path", "path": path, "nonce": self.nonces})

    @rule(value=st.sampled_from(NAMES))
    def somebody_deletes_a_snapshot(self, value):
        with suppress(ApiRefusal):
            self.world.api.delete("StatefulSparkSnapshot", self.world.namespace, f"clicks-{value}")

    @precondition(lambda self: not self.deleted)
    @rule(value=st.integers(1, 3))
    def somebody_asks_for_a_restart(self, value):
        if self.world.object() is not None:
            self.world.annotate(restart=str(value))

    @precondition(lambda self: not self.deleted and self.edits > 4)
    @rule()
    def somebody_deletes_the_job(self):
        if self.world.object() is not None:
            self.world.delete()
            self.deleted = True

    # -- promises

    @invariant()
    def no_attempt_has_two_drivers(self):
        attempts = [d.order.attempt for d in self.world.drivers.by_pod.values()]
        assert len(attempts) == len(set(attempts)), "an attempt had two drivers"

    @invariant()
    def no_two_drivers_run_that_nobody_has_told_to_end(self):
        living = {d.pod_uid for d in self.world.drivers.living if not d.cut_off}
        pods = [p["metadata"] for p in self.world.pods()]
        kept = [m["name"] for m in pods if m["uid"] in living and not m.get("deletionTimestamp")]
        assert len(kept) <= 1, kept

    @invariant()
    def nothing_that_was_completed_is_lost_but_by_a_persons_choice(self):
        chosen = {f"{SAVEPOINTS}/{name}" for name in NAMES}
        for restored in self.world.drivers.restored:
            by_choice = restored.explicit and restored.path in chosen
            assert by_choice or restored.epoch >= restored.newest, restored


TestJobsLife = JobsLife.TestCase
TestJobsLife.settings = settings(
    max_examples=30,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_jobs_live_through_whatever_happens(soak_seconds):
    """As above, for as long as there is time: each round with other lives."""
    end = time.monotonic() + soak_seconds
    while time.monotonic() < end:
        run_state_machine_as_test(
            JobsLife,
            settings=settings(
                max_examples=100,
                stateful_step_count=50,
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
