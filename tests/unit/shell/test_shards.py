"""Whose a job is: what is selected, when a job changes hands, and that never two have it."""

import asyncio
import random
import selectors
from contextlib import suppress
from dataclasses import replace

import pytest
from moorage_testing.kube.api import ApiStore
from moorage_testing.kube.memory import MemoryCluster
from moorage_testing.manifests import job_object, spec_data

from moorage_operator.kube.rest import cluster_error
from moorage_operator.leader import Leader, LeaseTimes
from moorage_operator.objects import meta_of
from moorage_operator.plan import ActionFailed
from moorage_operator.ports import ClusterError
from moorage_operator.shards import (
    NOT_SELECTED,
    OURS,
    SELECTION_ANNOTATION,
    Ownership,
    Selection,
    Tenure,
    is_known,
    is_same_rule,
    operator_of,
    read_selection,
)

JOB = "StatefulSparkJob"
SHARD = "moorage.dev/shard"
A, B, REST = (
    Selection((), "a", ("a", "b")),
    Selection((), "b", ("a", "b")),
    Selection((), "", ("a",)),
)


@pytest.mark.parametrize(
    ("selection", "selector", "has"),
    [
        (Selection(), "", {"", "a", "b", "c"}),
        (A, "moorage.dev/shard=a", {"a"}),
        (Selection((), "", ("b", "a")), "moorage.dev/shard notin (a,b)", {"", "c"}),
        (Selection(("there",), "a", ("a",)), "moorage.dev/shard=a", set()),
        (Selection(("here",), "", ()), "", {"", "a", "b", "c"}),
    ],
)
def test_a_selection_says_the_same_to_the_server_and_here(selection, selector, has):
    assert selection.selector == selector
    shards = ("", "a", "b", "c")
    assert {s for s in shards if selection.has("here", {SHARD: s} if s else {})} == has


def test_the_shards_of_one_release_have_every_job_once():
    names = ("a", "b")
    all_of_them = [Selection((), shard, names) for shard in ("", *names)]
    for label in ("", "a", "b", "c", "A"):
        labels = {SHARD: label} if label else {}
        assert sum(one.has("here", labels) for one in all_of_them) == 1


def test_a_selection_can_be_read_from_a_lease():
    for one in (A, B, REST, Selection(("x", "y"), "", ())):
        assert read_selection(lease(one)) == one


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format":2,"shard":"a"}', "null"])
def test_who_does_not_say_what_it_selects_selects_everything(text):
    """An operator of a release before or after."""
    body = lease(A)
    body["metadata"]["annotations"] = {SELECTION_ANNOTATION: text}
    assert read_selection(body) == Selection()


def lease(selection, name="other", holder="x", **spec):
    notes = {SELECTION_ANNOTATION: selection.text}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": "ops", "annotations": notes},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": "1", **spec},
    }


class Scene:
    """One operator of shard b, and a job of another's; `now` is what clocks show."""

    def __init__(self, lease="ops/other", taken_from=""):
        self.api, self.now = ApiStore(), 100.0
        self.cluster = MemoryCluster(self.api)
        self.own = Ownership(self.cluster, B, "ops/b", 15.0, lambda: self.now)
        body = job_object(spec_data("here/clicks"), "clicks", namespace="here")
        body["metadata"]["labels"] = {SHARD: "b"}
        self.api.create(body)
        if lease is not None:
            said = {"lease": lease, "takenFrom": taken_from}
            self.api.set_status(JOB, "here", "clicks", operator=said, phase="Running")

    @property
    def body(self):
        return self.api.get(JOB, "here", "clicks")

    async def judge(self):
        said, known = operator_of(self.body), is_known(self.body)
        return await self.own.judge(meta_of(self.body), said, known=known)

    def patch(self, kind, name, patch):
        self.api.patch(kind, "here" if kind == JOB else "ops", name, patch)


@pytest.mark.parametrize("claimed", [None, "ops/b"])
async def test_a_job_of_nobody_and_one_of_ours_are_ours_at_once(claimed):
    assert await Scene(claimed).judge() == OURS


async def test_whose_operator_was_deleted_by_hand_is_waited_for_as_if_it_were_there():
    """It may be another's, whose passes go on until they look again."""
    scene = Scene("ops/other")
    scene.api.create(lease(Selection()))
    body = scene.body
    del body["status"]["operator"]
    await scene.cluster.replace_status(body)
    standing = await scene.judge()
    assert (standing.ours, standing.claim.taken_from) == (False, "ops/b")
    assert await scene.own.take(scene.body, standing.claim)
    assert (await scene.judge()).wait == 15.0
    scene.now += 15.0
    assert (await scene.judge()).claim == scene.own.mine


async def test_definitions_that_drop_who_has_a_job_leave_it_to_the_lease(monkeypatch):
    scene = Scene(None)
    scene.api.set_status(JOB, "here", "clicks", phase="Running")
    keep = scene.cluster.replace_status

    async def drop(body):
        return await keep({**body, "status": {"phase": "Running"}})

    monkeypatch.setattr(scene.cluster, "replace_status", drop)
    assert await scene.own.take(scene.body, (await scene.judge()).claim)
    assert await scene.judge() == OURS
    assert scene.own.keeps(meta_of(scene.body), None)


@pytest.mark.parametrize("claimed", [None, "ops/b", "ops/other"])
async def test_a_job_of_another_label_is_not_ours_whatever_its_status_says(claimed):
    scene = Scene(claimed)
    scene.patch(JOB, "clicks", {"metadata": {"labels": {SHARD: "a"}}})
    assert await scene.judge() == NOT_SELECTED


SELECTED = {
    "given back": Selection(),
    "selects others": A,
    # The namespace had its label, and has another's by now.
    "let go": Selection(("there",), labels="team=a"),
}


@pytest.mark.parametrize("how", ["absent", *SELECTED])
async def test_a_job_that_nobody_looks_after_is_claimed_at_once_and_not_acted_on(how):
    scene = Scene()
    if how != "absent":
        scene.api.create(lease(SELECTED[how], holder="" if how == "given back" else "x"))
    standing = await scene.judge()
    assert not standing.ours
    assert (standing.claim.lease, standing.claim.taken_from) == ("ops/b", "ops/other")


async def test_a_lease_that_is_not_renewed_is_free_once_it_was_seen_so_for_as_long_as_it_lasts():
    scene = Scene()
    scene.api.create(lease(Selection()))
    for _ in range(3):
        assert (await scene.judge()).claim is None
        scene.now += 7.0
    assert (await scene.judge()).claim is not None


async def test_a_job_whose_holder_lives_is_left_alone_and_people_hear_of_it():
    scene, told = Scene(), []
    scene.api.create(lease(Selection()))
    for _ in range(20):
        standing = await scene.judge()
        assert (standing.ours, standing.claim) == (False, None)
        told.append(standing.told)
        scene.now += standing.wait
        scene.patch("Lease", "other", {"spec": {"renewTime": str(scene.now)}})
    assert told[0] == ""
    assert "lease=ops/other own=ops/b holder=x" in told[-1]
    assert scene.own.waiting == 1


async def test_a_claim_changes_nothing_else_and_only_what_was_read():
    scene = Scene()
    old, standing = scene.body, await scene.judge()
    assert await scene.own.take(old, standing.claim)
    said = {"lease": "ops/b", "takenFrom": "ops/other"}
    assert scene.body["status"] == {**old["status"], "operator": said}
    assert not await scene.own.take(old, standing.claim)


@pytest.mark.parametrize("seconds", [None, 60])
async def test_what_was_taken_is_acted_on_once_whoever_had_it_must_have_looked_again(seconds):
    """The longer of both Leases counts, and so does a process that comes after the claim."""
    scene = Scene("ops/b", "ops/other")
    scene.api.create(lease(A, leaseDurationSeconds=seconds))
    lasts = seconds or 15
    first = await scene.judge()
    assert (first.ours, first.claim, first.wait) == (False, None, lasts)
    scene.now += lasts - 0.1
    assert (await scene.judge()).claim is None
    scene.now += 0.1
    standing = await scene.judge()
    assert standing.claim == scene.own.mine
    assert await scene.own.take(scene.body, standing.claim)
    assert await scene.judge() == OURS


async def test_a_job_that_left_meanwhile_is_waited_for_anew():
    scene = Scene("ops/b", "ops/other")
    await scene.judge()
    scene.now += 10.0
    scene.patch(JOB, "clicks", {"metadata": {"labels": {SHARD: "a"}}})
    assert await scene.judge() == NOT_SELECTED
    scene.patch(JOB, "clicks", {"metadata": {"labels": {SHARD: "b"}}})
    scene.now += 10.0
    assert (await scene.judge()).wait == 15.0


async def test_a_job_that_another_took_meanwhile_is_waited_for_anew():
    """Its passes may go on, whatever was waited for before it had the job."""
    scene = Scene("ops/b", "ops/other")
    await scene.judge()
    scene.now += 10.0
    scene.api.set_status(JOB, "here", "clicks", operator={"lease": "ops/third", "takenFrom": ""})
    standing = await scene.judge()
    assert await scene.own.take(scene.body, standing.claim)
    scene.now += 10.0
    standing = await scene.judge()
    assert (standing.claim, standing.wait) == (None, 15.0)


async def test_a_lease_that_may_not_be_read_is_never_taken_for_a_free_one():
    scene = Scene()
    scene.cluster.fail(cluster_error(403, {"message": "no"}), kind="Lease", times=10)
    for _ in range(5):
        standing = await scene.judge()
        assert (standing.ours, standing.claim) == (False, None)
        assert "delete .status.operator" in standing.told
        scene.now += 60.0


async def test_what_has_no_answer_is_an_error():
    scene = Scene()
    scene.cluster.fail(cluster_error(503, None), kind="Lease")
    with pytest.raises(ClusterError):
        await scene.judge()


async def test_of_many_jobs_of_one_lease_one_asks_for_it():
    scene = Scene()
    for _ in range(10):
        await scene.judge()
    assert sum(call.kind == "Lease" for call in scene.cluster.journal) == 1


@pytest.mark.parametrize("how", ["label", "claim"])
async def test_a_pass_acts_only_while_the_job_is_certain_to_be_its_operators(how):
    scene = Scene("ops/b")
    tenure = Tenure(scene.own, meta_of(scene.body), scene.now)
    scene.now += 3.0
    assert await tenure.until() == 110.0
    assert not scene.cluster.journal
    scene.now += 3.0
    assert await tenure.until() == 116.0
    scene.now += 4.0
    if how == "label":
        scene.patch(JOB, "clicks", {"metadata": {"labels": {SHARD: "a"}}})
    else:
        said = {"lease": "ops/other", "takenFrom": "ops/b"}
        scene.api.set_status(JOB, "here", "clicks", operator=said)
    with pytest.raises(ActionFailed, match="another operator's by now"):
        await tenure.until()


async def test_a_snapshot_that_may_not_be_labelled_holds_up_nothing_else_of_its_job(shell):
    """Some other program's webhook must not keep a job from its operator."""
    kind = "StatefulSparkSnapshot"
    shell.make_job(meta={"labels": {SHARD: "b"}})
    meta = {"name": "first", "namespace": "here", "labels": {"moorage.dev/job": "clicks"}}
    spec = {"jobRef": {"name": "clicks"}}
    shell.api.create(
        {"apiVersion": "moorage.dev/v1alpha1", "kind": kind, "metadata": meta, "spec": spec}
    )
    own = Ownership(shell.cluster, B, "ops/b", 15.0, asyncio.get_running_loop().time)
    shell.reconciler = shell.another(ownership=own)
    refused = cluster_error(403, {"message": "a webhook says no"})
    shell.cluster.fail(refused, verb="patch", kind=kind, times=10)
    done = await shell.reconcile()
    assert (done.changed, done.problem) == (True, "")
    assert shell.status()["operator"]["lease"] == "ops/b"
    shell.cluster.heal()
    await shell.reconcile()
    assert shell.api.get(kind, "here", "first")["metadata"]["labels"][SHARD] == "b"


# -- many operators, in time that is made up -------------------------------------------------------

TIMES = LeaseTimes(15.0, 10.0, 2.0)


class MadeUpTime(asyncio.SelectorEventLoop):
    """Whenever nobody has anything to do, it is later."""

    def __init__(self):
        loop, self.now = self, 0.0

        class Selector(selectors.SelectSelector):
            def select(self, timeout=None):
                assert timeout is not None, "everybody waits, and nothing will ever happen"
                loop.now += max(timeout, 0.0)
                return super().select(0)

        super().__init__(Selector())

    def time(self):
        return self.now


class Slow:
    """A client whose requests take time before and after they are carried out."""

    def __init__(self, api, chance):
        self._port, self._chance = MemoryCluster(api), chance

    def __getattr__(self, name):
        async def call(*args, **kwargs):
            await asyncio.sleep(self._chance.choice((*[0.02] * 17, 0.5, 1.0, 6.0)))
            if self._chance.random() < 0.02:
                raise cluster_error(503, None)
            found = await getattr(self._port, name)(*args, **kwargs)
            await asyncio.sleep(self._chance.choice((0.01, 0.02, 0.2)))
            return found

        return call


class Acting:
    """Who acts on the job, and when; fails as soon as two do."""

    def __init__(self):
        self.now, self.count = set(), {}

    async def act(self, who, seconds):
        assert not self.now - {who}, f"{who} and {self.now} act at once"
        self.now.add(who)
        try:
            await asyncio.sleep(seconds)
        finally:
            self.now.discard(who)
        self.count[who] = self.count.get(who, 0) + 1


async def operate(name, selection, api, acting, chance):
    """A process from its start to its end, with passes as the loop makes them."""
    cluster, loop = Slow(api, chance), asyncio.get_running_loop()
    identity = f"{name}-{loop.time()}"
    leader = Leader(
        cluster,
        "ops",
        name,
        identity,
        selection=lambda: selection.text,
        times=TIMES,
        tick=loop.time,
    )
    own = Ownership(cluster, selection, f"ops/{name}", TIMES.duration, loop.time)
    await leader.acquire()
    holding = asyncio.create_task(leader.hold())
    passing = asyncio.create_task(passes(cluster, own, leader, acting, chance, name))
    try:
        await asyncio.wait({holding, passing}, return_when=asyncio.FIRST_COMPLETED)
        if passing.done():
            passing.result()
    finally:
        for task in (holding, passing):
            task.cancel()
        await asyncio.gather(holding, passing, return_exceptions=True)
        await leader.release()


async def passes(cluster, own, leader, acting, chance, name):
    tick = asyncio.get_running_loop().time
    while True:
        with suppress(ClusterError, ActionFailed):
            await one_pass(cluster, own, leader, acting, chance, name, tick)
        await asyncio.sleep(chance.uniform(0.5, 4.0))


async def one_pass(cluster, own, leader, acting, chance, name, tick):
    since = tick()
    body = await cluster.get(JOB, "here", "clicks")
    standing = await own.judge(meta_of(body), operator_of(body), known=is_known(body))
    if standing.claim is not None:
        await own.take(body, standing.claim)
    if not standing.ours:
        return
    if operator_of(body) is None:
        await own.take(body, own.mine)
        return
    tenure = Tenure(own, meta_of(body), since)
    for _ in range(6):
        with suppress(TimeoutError):
            async with asyncio.timeout_at(await tenure.until()):
                if leader.leads:
                    await acting.act(name, chance.uniform(0.1, 12.0))


async def restless(make, chance):
    """Its processes end now and then, and others follow, perhaps with another selection."""
    while True:
        with suppress(TimeoutError):
            async with asyncio.timeout(chance.uniform(20.0, 300.0)):
                await make()
        await asyncio.sleep(chance.uniform(0.1, 40.0))


async def an_hour(seed):
    random.seed(seed)  # the Lease spreads its tries by it
    chance, api, acting = random.Random(seed), ApiStore(), Acting()
    body = job_object(spec_data("here/clicks"), "clicks", namespace="here")
    api.create(body)
    shards = [(), ("a",), ("a", "b")]

    def make(name, shard):
        selection = Selection((), shard, chance.choice(shards))
        if shard:
            selection = Selection((), shard, ("a", "b"))
        return operate(name, selection, api, acting, chance)

    async def move():
        while True:
            await asyncio.sleep(chance.choice((1.0, 5.0, 30.0, 60.0, 90.0)))
            label = chance.choice((None, "a", "b"))
            api.patch(JOB, "here", "clicks", {"metadata": {"labels": {SHARD: label}}})

    async def forget():
        """Somebody does by hand what the event says, though the other operator is not gone."""
        while True:
            await asyncio.sleep(chance.choice((20.0, 60.0, 90.0)))
            body = api.get(JOB, "here", "clicks")
            with suppress(ClusterError):
                await MemoryCluster(api).replace_status({**body, "status": {"phase": "Running"}})

    # The rest, shards a and b, and one that somebody set up beside them by mistake.
    parts = (("rest", ""), ("a", "a"), ("b", "b"), ("mistake", ""))
    tasks = [asyncio.create_task(restless(lambda one=one: make(*one), chance)) for one in parts]
    tasks += [asyncio.create_task(move()), asyncio.create_task(forget())]
    done, _ = await asyncio.wait(tasks, timeout=3600.0, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
    return acting.count


@pytest.mark.parametrize("seed", range(2))
def test_never_two_act_on_a_job_however_it_moves_and_whoever_comes_and_goes(seed):
    with asyncio.Runner(loop_factory=MadeUpTime) as runner:
        count = runner.run(an_hour(seed))
    assert set(count) == {"rest", "a", "b", "mistake"}


def test_namespaces_by_label_are_those_that_have_it_by_now():
    labelled = Selection(("here",), labels="a=b")
    assert (labelled.reaches("here"), labelled.reaches("there")) == (True, False)
    assert not Selection((), labels="a=b").has("here", {})
    body = {"metadata": {"annotations": {SELECTION_ANNOTATION: labelled.text}}}
    assert read_selection(body) == replace(labelled, namespaces=("here",))


def test_of_more_namespaces_than_a_lease_has_room_for_all_count_as_looked_after():
    many = Selection(tuple(f"namespace-of-a-team-{n:05}" for n in range(8000)), labels="a=b")
    assert len(many.text) < 1000
    said = read_selection({"metadata": {"annotations": {SELECTION_ANNOTATION: many.text}}})
    assert said.has("any", {})
    few = replace(many, namespaces=tuple(many.namespaces)[:5000])
    assert 100_000 < len(few.text) < 200_000


def test_which_namespaces_have_a_label_is_no_other_rule():
    one, other = (Selection((name,), labels="a=b") for name in ("x", "y"))
    assert is_same_rule(one.text, other.text)
    assert not is_same_rule(one.text, replace(other, labels="a=c").text)
    assert not is_same_rule(Selection(("x",)).text, Selection(("y",)).text)
    assert not is_same_rule("", one.text)
