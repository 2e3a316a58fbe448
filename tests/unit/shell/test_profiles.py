"""Which spec a job has while what its profile says by now waits for a restart."""

from datetime import UTC, datetime
from typing import Any

import pytest
from moorage_testing.manifests import spec_data

from moorage.cli.uninstall import _retained
from moorage_api.changes import spec_hash
from moorage_api.fleet import Fleet, read_fleet
from moorage_api.status import JobStatus
from moorage_operator.objects import JudgedSpecs, meta_of
from moorage_operator.profiles import Effective, effective
from moorage_operator.world import Revision

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
BEFORE = """
profile: standard
profiles:
  standard:
    deletion: {policy: Delete, finalSnapshot: None}
    driver: {memory: 3Gi}
    ttlAfterFinished: 2h
"""
BROKEN = "profiles: ["


def fleet(text: str) -> Fleet:
    return read_fleet(text.encode())


class Job:
    """One that runs with its profile as a fleet file said it at first."""

    def __init__(self, text: str, **spec: Any) -> None:
        self._specs = JudgedSpecs()
        self._revisions: dict[str, Revision] = {}
        meta = {"name": "clicks", "namespace": "team", "uid": "u", "resourceVersion": "1"}
        self.body: dict[str, Any] = {
            "metadata": {**meta, "generation": 1},
            "spec": spec_data("a", image="registry.example/clicks:1", **spec),
        }
        self.status = JobStatus()
        found = self.seen(text)
        assert found.spec is not None
        one = Revision("r", 1, spec_hash(found.spec), found.spec)
        self._revisions[one.name] = one
        body = {"attempt": {"number": 1, "revision": "r", "runningSince": NOW}}
        self.status = JobStatus.model_validate({**body, "profile": found.profile})

    def patched(self, change: dict[str, Any]) -> None:
        self.body["metadata"]["generation"] += 1
        self.body["spec"] |= change["spec"]

    def seen(self, text: str) -> Effective:
        """With the fleet file as it is by now."""
        meta, known = meta_of(self.body), (self.status, self._revisions, fleet(text))
        return effective(self.body, meta, self._specs, *known, "rocksdb", NOW)


def deletion(found: Effective) -> tuple[str, str]:
    assert found.spec is not None
    return found.spec.deletion.policy, found.spec.deletion.final_snapshot


@pytest.mark.parametrize(
    "more",
    ["{}", "{credentialsSecretRef: {name: keys}}", "{s3: {endpoint: 'http://s3:1'}}"],
)
@pytest.mark.parametrize("now", [BEFORE, BROKEN, "", BEFORE.replace("3Gi", "4Gi")])
def test_a_job_that_is_uninstalled_keeps_its_checkpoints_whatever_its_profile_says(more, now):
    text = f"{BEFORE}    state: {more}\n"
    job = Job(text)
    assert deletion(job.seen(text)) == ("Delete", "None")
    status = job.status.model_dump(mode="json", by_alias=True)
    job.patched(_retained({**job.body, "status": status}))
    assert deletion(job.seen(now)) == ("Retain", "None")


def test_what_is_kept_goes_by_the_newest_word_and_the_rest_waits_whole():
    job = Job(BEFORE)
    now = BEFORE.replace("Delete", "Retain").replace("3Gi", "4Gi").replace("2h", "3h")
    found = job.seen(f"{now}    savepoint: {{retain: {{count: 50}}}}\n")
    assert deletion(found) == ("Retain", "None")
    assert found.spec is not None
    assert found.spec.savepoint.retain.count == 50
    assert (str(found.spec.driver.memory), str(found.spec.ttl_after_finished)) == ("3Gi", "2h")
    assert found.waits == ("spec.driver.memory", "spec.ttlAfterFinished")
    assert found.profile is not None
    assert found.profile.waiting


def test_a_delete_that_may_have_been_taken_back_deletes_nothing():
    job = Job(BEFORE)
    waiting = job.seen(BEFORE.replace("Delete", "Retain").replace("3Gi", "4Gi")).profile
    job.status = job.status.model_copy(update={"profile": waiting})
    assert deletion(job.seen(BROKEN)) == ("Retain", "None")
    # One that nothing else was said of is as it was.
    assert deletion(Job(BEFORE).seen(BROKEN)) == ("Delete", "None")


def test_a_job_that_cannot_be_read_without_its_profile_keeps_its_state():
    text = f"{BEFORE}    failurePolicy: {{backoff: {{max: 1h}}}}\n"
    job = Job(text, failurePolicy={"backoff": {"initial": "10m"}})
    job.patched({"spec": {"profile": "none"}})
    assert deletion(job.seen(text)) == ("Retain", "None")
