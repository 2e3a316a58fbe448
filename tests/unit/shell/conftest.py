"""A reconciler in a small world of stand-ins; decisions are what a test says they are."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from moorage_testing.kube import MemoryCluster
from moorage_testing.manifests import job_object, spec_data

from moorage_api.driver import DriverState, RequestView
from moorage_operator.loop import Reconciler
from moorage_operator.plan import Plan, SnapshotPlan
from moorage_operator.ports import EndpointUnreachable, Ref
from moorage_operator.world import Config, StoreTaskView, StoreView


class Clock:
    def __init__(self):
        self.time = datetime(2026, 3, 1, 12, tzinfo=UTC)

        self.passed = 0.0

    def now(self):
        return self.time

    def tick(self):
        return self.passed

    def advance(self, seconds):
        self.time += timedelta(seconds=seconds)
        self.passed += seconds

    def put(self, seconds):
        """Forward, though none of it has passed."""
        self.time += timedelta(seconds=seconds)


@dataclass
class FakeDrivers:
    """Answers for every driver alike: a state, or an error."""

    answer: object = field(default_factory=lambda: EndpointUnreachable("nobody there"))
    asked: list = field(default_factory=list)

    async def state(self, _target):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def ask(self, target, path, body):
        self.asked.append((target.ip, target.token, path, body))
        if isinstance(self.answer, Exception):
            raise self.answer
        return RequestView(request_id=body.request_id, kind="Stop", state="Pending")


@dataclass
class FakeLineages:
    view: object = field(default_factory=lambda: StoreView(exists=False))
    inspected: int = 0
    store_tasks: dict = field(default_factory=dict)

    async def inspect(self, _job, _since=None):
        self.inspected += 1
        return self.view

    async def run(self, _job, store_task):
        return self.store_tasks.setdefault(store_task.id, StoreTaskView("Pending"))

    async def look(self, _job, task_id):
        return self.store_tasks.get(task_id)


class Shell:
    """Everything around the decisions, and the last worlds that they were shown."""

    def __init__(self):
        self.clock = Clock()
        self.cluster = MemoryCluster()
        self.api = self.cluster.api
        self.drivers, self.lineages = FakeDrivers(), FakeLineages()
        self.leads = True
        self.decide = lambda world: Plan(world.status)
        self.decide_snapshot = lambda world: SnapshotPlan(world.snapshot.status)
        self.worlds, self.woken = [], []
        self.reconciler = self.another()

    def another(self, cluster=None, own_namespace="", ownership=None):
        """Another process with the same decisions."""
        return Reconciler(
            cluster=cluster or self.cluster,
            drivers=self.drivers,
            lineages=self.lineages,
            clock=self.clock,
            config=Config(cluster_id="test", own_namespace=own_namespace),
            decide_job=self._seen("decide"),
            decide_snapshot=self._seen("decide_snapshot"),
            may_act=lambda: self.leads,
            wake=self.woken.append,
            ownership=ownership,
        )

    def _seen(self, name):
        """A test may change its mind at any time."""

        def decided(world):
            self.worlds.append(world)
            return getattr(self, name)(world)

        return decided

    @property
    def world(self):
        return self.worlds[-1]

    async def reconcile(self):
        return await self.reconciler.reconcile(CLICKS)

    async def settle(self):
        return await self.reconciler.settle(CLICKS)

    def job(self):
        return self.api.get("StatefulSparkJob", "here", "clicks")

    def status(self):
        return self.job().get("status") or {}

    def events(self):
        return [event["reason"] for event in self.api.list("Event")]

    def make_job(self, name="clicks", meta=None, **spec):
        return self.api.create(job_body(name, meta, **spec))

    def make_pod(
        self,
        attempt=1,
        *,
        role="driver",
        status=None,
        name="",
        uid="",
        owner="clicks",
        volumes=(),
    ):
        """A pod as children make it; on a node, so that it lingers when deleted."""
        job = self.api.get("StatefulSparkJob", "here", owner)
        uid = uid or job["metadata"]["uid"]
        name = name or f"{owner}-{attempt}-driver"
        made = self.api.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": name,
                    "namespace": "here",
                    "labels": {
                        "moorage.dev/job": owner,
                        "moorage.dev/job-uid": uid,
                        "moorage.dev/role": role,
                        "moorage.dev/attempt": str(attempt),
                    },
                    "ownerReferences": [{**OWNER, "name": owner, "uid": uid, "controller": True}],
                },
                "spec": {
                    "containers": [{"name": role, "image": "x"}],
                    "nodeName": "node-1",
                    "volumes": list(volumes),
                },
            }
        )
        if status:
            self.api.set_status("Pod", "here", name, **status)
        return made


OWNER = {"apiVersion": "moorage.dev/v1alpha1", "kind": "StatefulSparkJob"}
CLICKS = Ref("StatefulSparkJob", "here", "clicks")


def job_body(name="clicks", meta=None, **spec):
    return job_object(spec_data(name, **spec), name, namespace="here", **(meta or {}))


@pytest.fixture
def shell():
    return Shell()


@pytest.fixture
def a_state():
    def state(shell, attempt=1, **more):
        uid = shell.job()["metadata"]["uid"]
        return DriverState(attempt=attempt, job_uid=uid, phase="running", **more)

    return state
