"""What watches have shown may be old, and then nothing is done that is wrong: only later.

Events of the operator's watches are late, lost or out of order; its passes look at what they have
shown first, and read everything live before they act.
"""

import collections
import random

import pytest
from moorage_testing.kube import Call

from moorage_operator.ports import Page

pytestmark = [pytest.mark.scenarios, pytest.mark.in_memory("watches of a server cannot be held up")]


@pytest.fixture
def watches(running):
    """How the operator's watches go; a test sets what becomes of an event."""

    class Watches:
        def __init__(self):
            self.shown = running.operator.watched.seen
            self.kept = []
            self.lost = lambda _event, _kind, _body: False
            # One operator with many watches: its cache alone is behind, it is woken as ever.
            running.operator.watched = self

        def seen(self, event, kind, body):
            if self.lost(event, kind, body):
                self.kept.append((event, kind, body))
            else:
                self.shown(event, kind, body)

        def catch_up(self, order=list):
            self.lost = lambda *_: False
            kept, self.kept = self.kept, []
            for one in order(kept):
                self.shown(*one)

    return Watches()


def drivers(world):
    """Those that have not ended."""
    pods = world.api.list("Pod", world.namespace, {"moorage.dev/role": "driver"})
    ended = ("Succeeded", "Failed")
    return [pod["metadata"]["name"] for pod in pods if pod["status"].get("phase") not in ended]


def shuffled(events):
    return random.Random(7).sample(events, len(events))


def requests(world):
    """Calls of the operator, by verb and kind."""
    counts: collections.Counter[tuple[str, str]] = collections.Counter()

    def count(call: Call):
        counts[call.verb, call.kind] += 1

    world.operator.cluster.chaos = count
    return counts


async def test_a_job_at_rest_costs_no_request_but_its_figures_every_five_minutes(running):
    await running.run(420)
    counts = requests(running)
    await running.run(1200)
    assert set(counts) <= {("replace_status", "StatefulSparkJob")}
    assert counts.total() <= 5


async def test_a_job_that_is_said_to_run_is_started_once_after_its_driver_dies(running, watches):
    watches.lost = lambda *_: True
    before = drivers(running)
    running.api.delete("Pod", running.namespace, before[0], grace=0)
    await running.run(120)
    watches.catch_up()
    await running.until(lambda: running.is_running() and drivers(running) != before)
    assert len(drivers(running)) == 1


@pytest.mark.parametrize("order", [list, reversed, shuffled])
async def test_events_in_any_order_lead_to_one_driver(running, watches, order):
    watches.lost = lambda *_: True
    running.annotate(restart="now")
    await running.run(30)
    watches.catch_up(order)
    await running.until(lambda: running.is_running() and running.status().attempt.number == 2)
    await running.run(60)
    assert len(drivers(running)) == 1
    assert running.status().attempt.number == 2


async def test_missed_deletions_delete_nothing_and_start_nothing(running, watches):
    watches.lost = lambda event, kind, _: event == "DELETED" and kind == "Pod"
    running.annotate(restart="now")
    await running.until(lambda: running.is_running() and running.status().attempt.number == 2)
    held = drivers(running)
    await running.run(300)
    assert drivers(running) == held
    assert running.status().attempt.number == 2


async def test_a_job_that_is_gone_and_still_shown_comes_to_nothing(running, watches):
    watches.lost = lambda event, *_: event == "DELETED"
    running.delete()
    await running.until(lambda: running.object() is None)
    await running.run(120)
    assert not drivers(running)
    assert running.object() is None


async def test_a_new_job_of_the_name_is_not_taken_for_the_one_that_is_shown(running, watches):
    watches.lost = lambda *_: True
    old = running.object()["metadata"]["uid"]
    running.delete()
    await running.until(lambda: running.object() is None)
    running.apply()
    await running.run(30)
    watches.catch_up()
    await running.run(60)
    assert running.object()["metadata"]["uid"] != old
    assert running.status().lineage_owner_uid in ("", running.object()["metadata"]["uid"])
    assert len(drivers(running)) <= 1


async def test_a_list_brings_round_what_no_event_showed(running, watches):
    watches.lost = lambda *_: True
    cache = running.operator.reconciler._watched
    running.snapshot("one")
    await running.run(60)
    running.api.delete("StatefulSparkSnapshot", running.namespace, "one")
    await running.run(60)
    for kind in ("StatefulSparkJob", "StatefulSparkSnapshot", "Pod"):
        listing = cache.listing(kind, None)
        listing.take(Page(running.api.list(kind), first=True))
        listing.end()
    shown = [one["metadata"]["name"] for one in cache.of_job("Pod", running.namespace, "clicks")]
    there = running.api.list("Pod", running.namespace, {"moorage.dev/job": "clicks"})
    assert shown == sorted(pod["metadata"]["name"] for pod in there)
    assert cache.get("StatefulSparkSnapshot", running.namespace, "one") is None
