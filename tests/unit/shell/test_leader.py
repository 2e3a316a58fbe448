"""The Lease: one leader, no shared clock, and an end in time."""

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from moorage_testing.kube import ApiStore, MemoryCluster

import moorage_operator.leader
from moorage_operator.leader import Leader, LeaseTimes
from moorage_operator.ports import ApiUnavailable

TIMES = LeaseTimes(duration=15.0, give_up=10.0, retry=2.0)


def _same(at):
    return at


class Ticks:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Pair:
    """Two candidates for one lease, under one true time; their walls may be years apart."""

    def __init__(self, skew=timedelta()):
        self.api, self.ticks = ApiStore(), Ticks()
        self.clusters = [MemoryCluster(self.api), MemoryCluster(self.api)]
        walls = [datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 1, tzinfo=UTC) + skew]
        self.first, self.second = (
            Leader(
                cluster, "ns", "lease", name, times=TIMES, tick=self.ticks, wall=partial(_same, at)
            )
            for cluster, name, at in zip(self.clusters, "ab", walls, strict=True)
        )

    def lease(self):
        return self.api.get("Lease", "ns", "lease")["spec"]


@pytest.fixture(params=[timedelta(), timedelta(days=3650), -timedelta(days=3650)])
def pair(request):
    return Pair(request.param)


async def test_the_first_one_leads_and_the_other_does_not(pair):
    assert await pair.first.step()
    assert not await pair.second.step()
    assert pair.lease()["holderIdentity"] == "a"


async def test_a_lease_that_is_renewed_stays(pair):
    await pair.first.step()
    for _ in range(30):
        pair.ticks.now += 2
        pair.first._wall = lambda tick=pair.ticks.now: datetime.fromtimestamp(tick, UTC)
        assert await pair.first.step()
        assert not await pair.second.step()


async def test_the_holder_stops_before_another_can_have_taken_over(pair):
    await pair.first.step()
    await pair.second.step()
    took_over = None
    for _ in range(400):
        pair.ticks.now += 0.1
        if await pair.second.step():
            took_over = took_over or pair.ticks.now
        assert not (pair.first.leads and pair.second.leads)
    assert took_over is not None
    assert pair.lease()["leaseTransitions"] == 1


async def test_a_renewal_counts_from_before_it_was_sent(pair):
    await pair.first.step()
    patch = pair.clusters[0].patch

    async def slow(*args):
        answer = await patch(*args)
        pair.ticks.now += 9
        return answer

    pair.clusters[0].patch = slow
    await pair.first.step()
    pair.ticks.now += 2
    assert not pair.first.leads


async def test_an_api_server_that_is_away_ends_leading_in_time(pair):
    await pair.first.step()
    pair.clusters[0].fail(ApiUnavailable("away"), times=-1)
    pair.ticks.now += 9
    assert await pair.first.step()
    pair.ticks.now += 2
    assert not await pair.first.step()


async def test_a_lost_reply_to_a_renewal_is_a_renewal_for_others(pair):
    await pair.first.step()
    await pair.second.step()
    pair.ticks.now += 8
    pair.first._wall = lambda: datetime(2027, 1, 1, tzinfo=UTC)
    pair.clusters[0].fail(ApiUnavailable("lost"), verb="patch", when="after")
    await pair.first.step()
    pair.ticks.now += 8
    assert not await pair.second.step()


async def test_a_lease_given_back_is_taken_at_once(pair):
    await pair.first.step()
    await pair.first.release()
    assert not pair.first.leads
    assert await pair.second.step()


async def test_a_lease_that_is_anothers_by_now_is_not_given_back(pair):
    await pair.first.step()
    pair.api.patch("Lease", "ns", "lease", {"spec": {"holderIdentity": "thief"}})
    await pair.first.release()
    assert pair.lease()["holderIdentity"] == "thief"


async def test_a_taking_that_was_cut_short_is_given_back_if_it_went_through(pair):
    """The request was cancelled, and the server carried it out all the same."""
    create = pair.clusters[0].create

    async def cut_short(body):
        await create(body)
        raise asyncio.CancelledError

    pair.clusters[0].create = cut_short
    with pytest.raises(asyncio.CancelledError):
        await pair.first.step()
    assert not pair.first.leads
    assert pair.lease()["holderIdentity"] == "a"
    await pair.first.release()
    assert not pair.lease().get("holderIdentity")


async def test_a_renewal_that_comes_in_between_does_not_keep_the_lease(pair):
    """It was sent before, and reaches the server between the last reading and the giving back."""
    await pair.first.step()
    get, late = pair.clusters[0].get, [True]

    async def overtaken(*place):
        found = await get(*place)
        if late:
            late.clear()
            pair.api.patch("Lease", "ns", "lease", {"spec": {"leaseTransitions": 0, "x": 1}})
        return found

    pair.clusters[0].get = overtaken
    await pair.first.release()
    assert not pair.lease().get("holderIdentity")


async def test_a_lease_that_cannot_be_given_back_in_time_is_left_to_lapse(pair, monkeypatch):
    monkeypatch.setattr(moorage_operator.leader, "_LAST_WORD", 0.05)
    await pair.first.step()

    async def silent(*_):
        await asyncio.sleep(3600)

    pair.clusters[0].get = silent
    async with asyncio.timeout(5.0):
        await pair.first.release()


async def test_standing_by_is_to_have_read_a_lease_that_another_has(pair):
    assert not pair.second.stands_by
    await pair.first.step()
    await pair.second.step()
    assert (pair.first.stands_by, pair.second.stands_by) == (False, True)
    pair.clusters[1].fail(ApiUnavailable("away"), times=1)
    await pair.second.step()
    assert not pair.second.stands_by


async def test_a_holder_that_finds_another_in_the_lease_stops_at_once(pair):
    await pair.first.step()
    pair.api.patch("Lease", "ns", "lease", {"spec": {"holderIdentity": "thief"}})
    assert not await pair.first.step()
    assert not pair.first.leads


async def test_of_many_that_race_one_leads():
    api, ticks = ApiStore(), Ticks()
    many = [
        Leader(MemoryCluster(api), "ns", "lease", f"c{n}", times=TIMES, tick=ticks)
        for n in range(8)
    ]
    assert sum(await asyncio.gather(*(one.step() for one in many))) == 1
    ticks.now += 20
    for _ in range(2):
        await asyncio.gather(*(one.step() for one in many))
        ticks.now += 16
    # Nobody renewed in between: whoever leads now took it after it had lapsed for everyone.
    assert sum(await asyncio.gather(*(one.step() for one in many))) == 1


async def test_the_time_in_a_lease_has_fractions_of_seconds(pair):
    await pair.first.step()
    assert pair.lease()["renewTime"].endswith(".000000Z")


async def test_holding_ends_when_leading_ends():
    api = ApiStore()
    cluster = MemoryCluster(api)
    tick = asyncio.get_running_loop().time
    leader = Leader(cluster, "ns", "lease", "a", times=LeaseTimes(0.6, 0.4, 0.05), tick=tick)
    await leader.acquire()
    holding = asyncio.create_task(leader.hold())
    await asyncio.sleep(0)
    cluster.fail(ApiUnavailable("away"), times=-1)
    await asyncio.wait_for(holding, 5)
    assert not leader.leads


@pytest.mark.parametrize("times", [(15, 15, 2), (15, 10, 10), (15, 10, 0), (5, 10, 1)])
def test_times_that_cannot_work_are_refused(times):
    with pytest.raises(ValueError, match="retry < give_up < duration"):
        LeaseTimes(*times)
