"""Which claims of a job are made its own, given to the next attempt, and deleted."""

from datetime import UTC, datetime, timedelta

import pytest
from moorage_testing.kube import ApiStore, MemoryCluster
from moorage_testing.manifests import spec_data

from moorage_api import JobSpec
from moorage_operator.plan import KeepClaims
from moorage_operator.volumes import give_up, hand_on, keep
from moorage_operator.world import Meta

META = Meta("clicks", "default", "job-uid", 1, "1")
NOW = datetime(2026, 3, 1, tzinfo=UTC)
JOB = {"kind": "StatefulSparkJob", "name": "clicks", "uid": "job-uid", "controller": True}
DRIVER = {"kind": "Pod", "name": "clicks-1-driver", "uid": "driver-uid", "controller": True}


def spec(executors=2, **local):
    named = {"type": "ReusedPVC", "size": "1Gi", "storageClassName": "fast"} | local
    directories = {"checkpointDir": "s3://state/a", "savepointDir": "s3://state/b"}
    state = {**directories, "local": {k: v for k, v in named.items() if v is not None}}
    width = {"instances": executors}
    found = spec_data(state=state, executor=width, scaling={"parallelism": executors})
    return JobSpec.model_validate(found)


class Claims:
    def __init__(self):
        self.now = NOW
        self.api = ApiStore(lambda: self.now)
        self.cluster = MemoryCluster(self.api)

    def add(self, name, owner=JOB, application="job-uid-1", job="job-uid", **changed):
        self.now += timedelta(seconds=1)
        made = {"storageClassName": "fast", "resources": {"requests": {"storage": "1Gi"}}} | changed
        labels = {"moorage.dev/job-uid": job, "spark-app-selector": application}
        meta = {"name": name, "namespace": "default", "labels": labels, "ownerReferences": [owner]}
        claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta}
        self.api.create({**claim, "spec": made})

    def hold(self, name):
        """A pod uses it: the API server keeps it until that is gone."""
        held = {"metadata": {"finalizers": ["kubernetes.io/pvc-protection"]}}
        self.api.patch("PersistentVolumeClaim", "default", name, held)

    def of(self, name):
        return self.api.get("PersistentVolumeClaim", "default", name)

    async def hand_on(self, spec):
        """Begin the second attempt."""
        labels = {"moorage.dev/job-uid": META.uid}
        found = self.api.list("PersistentVolumeClaim", "default", labels)
        await hand_on(self.cluster, found, META, spec, 2)

    def all(self):
        """Who owns each, and which application may use it."""
        return {
            one["metadata"]["name"]: (
                one["metadata"]["ownerReferences"][0]["kind"],
                one["metadata"]["labels"].get("spark-app-selector"),
            )
            for one in self.api.list("PersistentVolumeClaim")
        }


@pytest.fixture
def claims():
    return Claims()


async def test_what_executors_use_is_the_jobs(claims):
    claims.add("a", DRIVER)
    claims.add("b", DRIVER)
    claims.add("others", DRIVER, job="another")
    assert await keep(claims.cluster, KeepClaims(1, frozenset({"a"})), META)
    assert claims.all() == {
        "a": ("StatefulSparkJob", "job-uid-1"),
        "b": ("Pod", "job-uid-1"),
        "others": ("Pod", "job-uid-1"),
    }
    (owner,) = claims.of("a")["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["controller"]) == ("job-uid", True)


async def test_a_claim_that_is_not_made_yet_is_kept_later(claims):
    wanted = KeepClaims(1, frozenset({"a"}))
    assert not await keep(claims.cluster, wanted, META)
    claims.add("a", DRIVER)
    assert await keep(claims.cluster, wanted, META)
    assert claims.all() == {"a": ("StatefulSparkJob", "job-uid-1")}


async def test_a_claim_that_goes_when_its_pod_does_is_not_waited_for(claims):
    claims.add("a", DRIVER)
    claims.hold("a")
    claims.api.delete("PersistentVolumeClaim", "default", "a")
    assert await keep(claims.cluster, KeepClaims(1, frozenset({"a"})), META)
    assert claims.all() == {"a": ("Pod", "job-uid-1")}


async def test_a_claim_that_an_older_operator_had_made_is_left_to_its_driver(claims):
    claims.add("a", DRIVER, job="")
    assert await keep(claims.cluster, KeepClaims(1, frozenset({"a"})), META)
    assert claims.all() == {"a": ("Pod", "job-uid-1")}


async def test_a_copy_that_a_person_made_is_left_alone(claims):
    claims.add("copy")
    orphan = {"metadata": {"ownerReferences": None}}
    claims.api.patch("PersistentVolumeClaim", "default", "copy", orphan)
    claims.add("a")
    await keep(claims.cluster, KeepClaims(2, frozenset({"a"}), whole=True), META)
    await claims.hand_on(spec(1))
    assert claims.of("copy")["metadata"]["labels"]["spark-app-selector"] == "job-uid-1"
    assert claims.of("a")["metadata"]["labels"]["spark-app-selector"] == "job-uid-2"


async def test_what_is_of_no_attempt_that_lives_is_deleted(claims):
    claims.add("old")
    claims.add("of-an-ended-driver", {**DRIVER, "uid": "another"})
    claims.add("free", application="job-uid-2")
    claims.add("used", DRIVER, "job-uid-2")
    claims.add("standby", DRIVER, "job-uid-3")
    await keep(claims.cluster, KeepClaims(2, frozenset({"used"}), standby=3), META)
    assert claims.all() == {
        "free": ("StatefulSparkJob", "job-uid-2"),
        "used": ("StatefulSparkJob", "job-uid-2"),
        "standby": ("Pod", "job-uid-3"),
    }
    await keep(claims.cluster, KeepClaims(2, frozenset({"used"})), META)
    assert claims.all().keys() == {"free", "used"}


async def test_after_fewer_executors_the_next_start_gets_what_those_that_stayed_have(claims):
    for name in ("stayed", "came", "went"):
        claims.add(name)
    used = frozenset({"stayed", "came"})
    await keep(claims.cluster, KeepClaims(1, used), META)
    assert claims.all().keys() == {"stayed", "came", "went"}
    # Nobody is on the way who could take it.
    await keep(claims.cluster, KeepClaims(1, used, whole=True), META)
    await claims.hand_on(spec())
    assert claims.all().keys() == {"stayed", "came"}


async def test_the_newest_are_given_to_the_next_attempt_and_what_is_too_much_goes(claims):
    for name in ("oldest", "b"):
        claims.add(name)
    claims.add("a", DRIVER)
    claims.add("others", DRIVER, job="another")
    await claims.hand_on(spec())
    assert claims.all() == {
        "b": ("StatefulSparkJob", "job-uid-2"),
        "a": ("StatefulSparkJob", "job-uid-2"),
        "others": ("Pod", "job-uid-1"),
    }
    before = len(claims.cluster.effects)
    await claims.hand_on(spec())
    assert len(claims.cluster.effects) == before


@pytest.mark.parametrize(
    ("local", "changed"),
    [
        ({"size": "2Gi"}, {}),
        ({"storageClassName": "slow"}, {}),
        ({"type": "EmptyDir", "size": None, "storageClassName": None}, {}),
        ({"type": "EphemeralPVC"}, {}),
        ({}, {"storageClassName": None}),
        ({}, {"resources": {}}),
    ],
)
async def test_a_claim_that_spark_would_not_take_is_deleted(claims, local, changed):
    claims.add("a", **changed)
    await claims.hand_on(spec(**local))
    assert claims.all() == {}


@pytest.mark.parametrize("size", ["1073741824", "1025Mi", "3Gi"])
async def test_one_of_the_same_size_in_other_words_or_larger_is_kept(claims, size):
    claims.add("a", resources={"requests": {"storage": size}})
    await claims.hand_on(spec())
    assert claims.all() == {"a": ("StatefulSparkJob", "job-uid-2")}


async def test_a_claim_without_a_volume_is_not_given_to_anybody(claims):
    claims.add("a")
    claims.api.set_status("PersistentVolumeClaim", "default", "a", phase="Lost")
    await claims.hand_on(spec())
    assert claims.all() == {}


async def test_a_claim_that_is_given_up_is_free_for_nobody_while_a_pod_uses_it(claims):
    claims.add("a")
    claims.hold("a")
    await give_up(claims.cluster, META, "a")
    assert claims.all() == {"a": ("StatefulSparkJob", None)}
    assert claims.of("a")["metadata"]["deletionTimestamp"]
    before = len(claims.cluster.effects)
    await give_up(claims.cluster, META, "a")
    await give_up(claims.cluster, META, "none")
    assert len(claims.cluster.effects) == before


async def test_no_claim_of_another_job_is_given_up(claims):
    claims.add("a", job="another")
    await give_up(claims.cluster, META, "a")
    assert "deletionTimestamp" not in claims.of("a")["metadata"]
