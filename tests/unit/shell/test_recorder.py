"""What is written stays within what the API server takes."""

import json
from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from moorage_testing.kube import MemoryCluster

from moorage_api.fleet import digest_of
from moorage_api.status import (
    Condition,
    JobStatus,
    ProfileStatus,
    Restarts,
    RevisionRecord,
    read_status,
)
from moorage_operator.plan import Event
from moorage_operator.recorder import STATUS_BUDGET, Written, event_body, fitted, write_status

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
ABOUT = {
    "apiVersion": "moorage.dev/v1alpha1",
    "kind": "StatefulSparkJob",
    "metadata": {"name": "clicks", "namespace": "n", "uid": "u", "resourceVersion": "5"},
}


def large(length, letter="x"):
    conditions = [
        Condition(
            type=f"T{n}",
            status="True",
            reason="R",
            message=letter * length,
            last_transition_time=NOW,
        )
        for n in range(10)
    ]
    restarts = Restarts(window=tuple(NOW for _ in range(64)), last_message=letter * length)
    return JobStatus(
        phase="Failed", message=letter * length, conditions=tuple(conditions), restarts=restarts
    )


@given(st.integers(0, 60_000), st.sampled_from(["x", "é", "\U0001f30a", '"']))
def test_a_status_never_outgrows_its_budget_and_can_be_read_again(length, letter):
    data = fitted(large(length, letter))
    assert len(json.dumps(data)) <= STATUS_BUDGET
    assert read_status(data).phase == "Failed"


def test_a_status_within_its_budget_is_left_as_it_is():
    status = large(500)
    assert fitted(status) == status.to_json()


def test_cutting_is_stable_so_that_a_cut_status_is_not_written_again():
    once = fitted(large(50_000))
    assert fitted(read_status(once)) == once


def versions(number):
    return tuple(
        RevisionRecord(
            name=f"clicks-{n}",
            generation=n,
            attempt=n,
            at=NOW,
            changed=tuple(
                f"spec.sparkConf[spark.k{i}]: {'a' * 90} -> {'b' * 90}" for i in range(8)
            ),
            outcome="RolledBack",
            message="m" * 500,
        )
        for n in range(number)
    )


def profile(size):
    values = {"sparkConf": {"spark.message": "v" * size}, "message": "v" * 2000}
    return ProfileStatus(name="standard", digest=digest_of(values), values=values)


@given(st.integers(0, 10), st.integers(0, 13_000), st.integers(0, 60_000))
def test_with_versions_and_a_profile_it_stays_within_its_budget(number, size, length):
    changes = {"revisions": versions(number), "profile": profile(size)}
    status = large(length).model_copy(update=changes)
    data = fitted(status)
    assert len(json.dumps(data)) <= STATUS_BUDGET
    found = read_status(data)
    assert found.profile == status.profile
    assert [one.name for one in found.revisions] == [
        f"clicks-{n}" for n in range(number - len(found.revisions), number)
    ]
    assert fitted(found) == data


def test_the_oldest_versions_go_before_any_text_is_cut():
    status = large(1000).model_copy(update={"revisions": versions(10), "profile": profile(8000)})
    found = read_status(fitted(status))
    assert 1 < len(found.revisions) < 10
    assert (found.message, found.conditions) == (status.message, status.conditions)


def test_an_events_name_follows_from_object_reason_and_key():
    one = event_body(ABOUT, Event("Normal", "Restored", "a", "1"), NOW)
    same = event_body(ABOUT, Event("Normal", "Restored", "b", "1"), NOW)
    other = event_body(ABOUT, Event("Normal", "Restored", "a", "2"), NOW)
    names = [event["metadata"]["name"] for event in (one, same, other)]
    assert names[0] == names[1] != names[2]
    assert one["involvedObject"]["uid"] == "u"


@given(st.text(max_size=3000))
def test_an_events_message_fits_and_is_text(message):
    note = event_body(ABOUT, Event("Warning", "R", message, "k"), NOW)["message"]
    assert len(note.encode()) <= 1024


class Older(MemoryCluster):
    """An API server whose definition knows only some fields of a status."""

    def __init__(self, *known):
        super().__init__()
        self.known, self.version, self.status = known, 5, {}

    async def replace_status(self, body):
        kept = {key: value for key, value in body["status"].items() if key in self.known}
        self.version += kept != self.status
        self.status = kept
        meta = body["metadata"] | {"resourceVersion": str(self.version)}
        return body | {"metadata": meta, "status": kept}


async def test_what_an_older_definition_drops_is_no_change_that_could_be_written_for_ever():
    older = Older("phase")
    body: dict[str, Any] = ABOUT | {"status": {}}
    new = JobStatus(phase="Running", message="all is well")
    written, body = await write_status(older, body, JobStatus(), new)
    assert written is Written.WRITTEN
    written, _ = await write_status(older, body, read_status(body["status"]), new)
    assert written is Written.PRUNED
