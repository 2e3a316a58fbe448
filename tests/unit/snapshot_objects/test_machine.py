"""Random lives of a job's snapshots: drivers die, stores go down, people delete and pin.

Every object is decided on by turns, each time on a fresh world; the operator may die between any
two steps, since nothing but the status is carried over. Whatever happens, at the end everything is
final or gone.
"""

import random
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st
from moorage_testing.snapshot_worlds import (
    DIGEST,
    NOW,
    job,
    job_spec,
    report,
    savepoint_info,
    snapshot,
    world,
)

from moorage_operator.plan import AskDriver, RunStoreTask, SetFinalizer
from moorage_operator.snapshots import decide_snapshot
from moorage_operator.snapshots.retention import uses
from moorage_operator.world import StoreTaskView

SPEC = job_spec()
BUSY = ("Pending", "Running")


@dataclass
class Life:
    """Three snapshots of one job, a driver, and a store, as far as they matter here."""

    dice: random.Random
    calm: bool = False
    now: datetime = NOW
    attempt: int = 3
    alive: bool = True
    store_up: bool = True
    asked: dict = field(default_factory=dict)
    complete: dict = field(default_factory=dict)
    began: dict = field(default_factory=dict)
    store_tasks: dict = field(default_factory=dict)

    def __post_init__(self):
        self.views = {
            name: snapshot(name, age=age, trigger=trigger, deletionPolicy=self.policy())
            for name, age, trigger in (
                ("clicks-a", 9, "Manual"),
                ("clicks-b", 9, "Periodic"),
                ("clicks-c", 1, "Periodic"),
            )
        }

    def policy(self):
        return self.dice.choice(["Delete", "Retain"])

    def job(self):
        attempt = {"number": self.attempt, "runningSince": self.now, "startedAt": self.now}
        return job(SPEC, attempt=attempt | ({} if self.alive else {"outcome": "Failed"}))

    def world_of(self, view):
        requests = list(self.asked.values())
        return world(
            view,
            now=self.now,
            job=self.job(),
            report=report(*requests, attempt=self.attempt) if self.alive else None,
            siblings=tuple(v for v in self.views.values() if v.meta.name != view.meta.name),
            store_tasks=dict(self.store_tasks),
        )

    def turn(self):
        self.now += timedelta(seconds=self.dice.choice([1, 5, 30]))
        self.fate()
        for name in self.dice.sample(list(self.views), len(self.views)):
            self.decide(self.views[name])
        self.serve()

    def decide(self, view):
        seen = self.world_of(view)
        plan = decide_snapshot(seen)
        kept = replace(view, status=plan.status)
        self.views[view.meta.name] = kept
        for effect in plan.effects:
            if not self.calm and self.dice.random() < 0.2:
                return  # The operator died here.
            self.carry_out(kept, effect, seen)

    def carry_out(self, view, effect, seen):
        match effect:
            case AskDriver():
                self.ask(effect)
            case RunStoreTask():
                self.run(view, effect.store_task, seen)
            case SetFinalizer(present=False) if view.meta.deleted_at is not None:
                del self.views[view.meta.name]
            case SetFinalizer():
                held = (seen.config.finalizer,) if effect.present else ()
                self.views[view.meta.name] = replace(view, meta=replace(view.meta, finalizers=held))

    def ask(self, effect):
        if not self.alive or effect.attempt != self.attempt:
            return
        request = effect.body.request_id
        view = {"requestId": request, "kind": "Savepoint", "state": "Pending"}
        self.asked.setdefault(request, {**view, "name": effect.body.name})
        self.began.setdefault(effect.body.name, (effect.body.attempt or request).partition(".")[0])
        # Of objects that are gone the driver may have more in its queue.
        known = {one.status.request_id for one in self.views.values()}
        busy = [name for name, one in self.asked.items() if one["state"] in BUSY]
        assert len(known.intersection(busy)) <= 1

    def run(self, view, store_task, seen):
        if not self.store_up:
            down = StoreTaskView("Failed", {}, "store_unavailable", "down", retryable=True)
            self.store_tasks.setdefault(store_task.id, down)
            return
        name = store_task.path.rpartition("/")[2]
        if store_task.kind == "Delete":
            assert view.meta.deleted_at is not None
            assert view.spec.deletion_policy == "Delete"
            assert not uses(view, seen.job)
            assert store_task.digest or store_task.attempt
            self.complete.pop(name, None)
            self.store_tasks.setdefault(store_task.id, StoreTaskView("Completed", {"deleted": 1}))
            return
        found = {"found": name in self.complete, "attempt": self.began.get(name, "")}
        if name in self.complete:
            found |= {"kind": "savepoint", "digest": DIGEST, "path": store_task.path}
        self.store_tasks.setdefault(store_task.id, StoreTaskView("Completed", found))

    def serve(self):
        """The driver goes on with what it was asked for."""
        if not self.alive:
            return
        for one in self.asked.values():
            if one["state"] in BUSY and (self.calm or self.dice.random() < 0.5):
                self.answer(one)

    def answer(self, one):
        if not self.calm and self.dice.random() < 0.3:
            one |= {"state": "Failed", "error": {"code": "io_exception", "message": "no"}}
            return
        self.complete[one["name"]] = True
        one |= {"state": "Completed", "savepoint": savepoint_info(one["name"])}

    def fate(self):
        """What else happens."""
        if self.calm:
            self.store_up = True
            self.revive()
            return
        chance = self.dice.random()
        if chance < 0.15:
            self.die()
        elif chance < 0.35:
            self.revive()
        elif chance < 0.5:
            self.store_up = not self.store_up
        elif chance < 0.6 and self.views:
            self.delete(self.dice.choice(list(self.views)))
        elif chance < 0.7 and self.views:
            self.pin(self.dice.choice(list(self.views)), pinned=self.dice.random() < 0.5)
        elif chance < 0.75 and self.views:
            self.edit(self.dice.choice(list(self.views)), deletion_policy=self.policy())

    def die(self):
        """With its last breath it may complete what it was at work on."""
        for one in self.asked.values():
            if one["state"] in BUSY and self.dice.random() < 0.5:
                self.complete[one["name"]] = True
        self.alive = False
        self.asked.clear()

    def revive(self):
        if not self.alive:
            self.alive, self.attempt = True, self.attempt + 1

    def delete(self, name):
        view = self.views[name]
        self.views[name] = replace(view, meta=replace(view.meta, deleted_at=self.now))
        if not view.meta.finalizers:
            del self.views[name]

    def pin(self, name, *, pinned):
        self.edit(name, pinned=pinned)

    def edit(self, name, **spec):
        view = self.views[name]
        self.views[name] = replace(view, spec=view.spec.model_copy(update=spec))


def is_under_way(view):
    state = view.status.state
    return state in ("Pending", "InProgress", "Verifying") or view.meta.deleted_at is not None


@given(st.integers(0, 2**32), st.integers(5, 60))
@settings(max_examples=200)
def test_snapshots_end_final_or_gone_and_never_two_are_taken_at_once(seed, turns):
    life = Life(random.Random(seed))
    for _ in range(turns):
        life.turn()
    life.calm = True
    for name in list(life.views):
        life.pin(name, pinned=False)
    for _ in range(200):
        life.turn()
        if not any(is_under_way(view) for view in life.views.values()):
            break
    for view in life.views.values():
        assert view.status.state in ("Completed", "Failed", "Abandoned"), view
        assert view.meta.deleted_at is None
        if view.status.state == "Completed":
            assert view.directory in life.complete
