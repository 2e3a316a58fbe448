"""Objects of a job that nobody watches, deleted by hand: a list of them shows what is gone."""

import pytest

from moorage_operator.ports import Forbidden, Ref

pytestmark = [
    pytest.mark.scenarios,
    pytest.mark.in_memory("on a cluster the operator lists again by itself"),
]

BESIDE = {
    "failurePolicy": {"disruptionBudget": {"driver": True, "executorsAtOnce": 1}},
    "observability": {
        "ui": {"ingressTemplate": "/{{name}}"},
        "metrics": {"podMonitor": True},
    },
}
OBJECTS = [
    ("Service", "clicks-driver"),
    ("Ingress", "clicks-driver"),
    ("PodMonitor", "clicks-driver"),
    ("PodDisruptionBudget", "clicks-driver"),
    ("PodDisruptionBudget", "clicks-executor"),
]


@pytest.fixture
async def calm(running):
    """A job that has all there is, and of which nothing is to be done."""
    running.edit(executor={"instances": 2}, **BESIDE)
    await running.until(lambda: all(there(running, *one) for one in OBJECTS))
    await running.run(120)
    return running


def there(world, kind, name):
    return world.api.get(kind, world.namespace, name) is not None


async def lost(world):
    """The list that an operator makes again and again."""
    found = await world.operator.reconciler.look_for_lost(None, "moorage.dev/job-uid")
    world.operator.due.update(dict.fromkeys(found, 0.0))
    await world.run(5)
    return found


@pytest.mark.parametrize(("kind", "name"), OBJECTS)
async def test_what_is_gone_is_found_by_a_list_and_made_again(calm, kind, name):
    calm.api.delete(kind, calm.namespace, name)
    # No watch shows it, and a job at rest has no live pass for hours.
    await calm.run(300)
    assert not there(calm, kind, name)
    assert await lost(calm) == [Ref("StatefulSparkJob", calm.namespace, "clicks")]
    assert there(calm, kind, name)
    assert await lost(calm) == []


async def test_where_nothing_is_gone_nothing_is_done(calm):
    calm.operator.cluster.journal.clear()
    assert await lost(calm) == []
    asked = {(one.verb, one.kind) for one in calm.operator.cluster.journal}
    assert {verb for verb, _ in asked} <= {"list"}


async def test_of_what_a_job_does_not_ask_for_nothing_is_missed(running):
    await running.run(120)
    running.api.delete("Service", running.namespace, "clicks-driver")
    running.annotate(paused="true")
    await running.run(60)
    assert await lost(running) == []
    assert not there(running, "Service", "clicks-driver")


async def test_what_may_not_be_listed_holds_up_nothing(calm):
    calm.operator.cluster.fail(Forbidden("no"), verb="list", kind="Service")
    calm.api.delete("Ingress", calm.namespace, "clicks-driver")
    await lost(calm)
    assert there(calm, "Ingress", "clicks-driver")


async def test_a_job_that_goes_while_it_is_looked_for_is_none_of_those_that_lost_something(calm):
    reconciler, ref = calm.operator.reconciler, Ref("StatefulSparkJob", calm.namespace, "clicks")
    calm.api.delete("Service", calm.namespace, "clicks-driver")
    made = reconciler._made

    def made_and_gone(namespace):
        found = made(namespace)
        reconciler._memory.pop(ref)
        return found

    reconciler._made = made_and_gone
    assert await reconciler.look_for_lost(None, "moorage.dev/job-uid") == []
