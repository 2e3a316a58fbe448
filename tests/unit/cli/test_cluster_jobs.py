"""`kubectl moorage`: what it shows of a cluster's objects, what it orders, and how it waits."""

import io
import json
import subprocess
from dataclasses import fields

import pytest
from moorage_testing.kubectl_words import CHECKPOINT, Kubectl, conditions, job, snapshot

from moorage.cli import cluster_jobs as module
from moorage.cli import completion
from moorage.cli.cluster_jobs import job_outcome
from moorage.cli.kubectl import JOBS, SNAPSHOTS, Cluster, Refused
from moorage.cli.output import SavepointFound

SAVEPOINT = {"format", "command", *(one.name for one in fields(SavepointFound))}


def test_all_jobs_are_a_table_and_json_has_the_same(plugin):
    kubectl = Kubectl(job(), job("other", phase="Failed", conditions=conditions(Ready="False")))
    status, out, err = plugin(kubectl, "status")
    assert (status, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert [line[:3] for line in lines[1:]] == [
        ["clicks", "Running", "2"],
        ["other", "Failed", "2"],
    ]
    assert lines[2][-2:] == ["Ready:", "Why"]
    status, out, _ = plugin(kubectl, "status", "clicks", "-o", "json")
    assert json.loads(out)["phase"] == "Running"


def test_history_has_the_newest_first_with_the_reason_of_what_failed(plugin):
    failed = snapshot("clicks-b", "Failed", age=1, message="no room")
    status, out, _ = plugin(Kubectl(job(), snapshot("clicks-a"), failed), "history", "clicks")
    lines = out.splitlines()
    assert status == 0
    assert [line.split()[0] for line in lines] == ["NAME", "clicks-a", "clicks-b"]
    assert lines[1].endswith("s3://bucket/clicks-a")
    assert lines[2].endswith("no room")


def test_revisions_have_the_newest_first_with_what_changed_and_why_one_went(plugin):
    at = "2026-11-23T14:00:00Z"
    first = {"name": "clicks-1a", "attempt": 1, "at": at, "outcome": "Stable"}
    change, why = "spec.image: c:1 -> c:2", "it did not become stable within 10m"
    went = {"name": "clicks-2b", "attempt": 2, "at": at, "outcome": "RolledBack"}
    went |= {"changed": [change], "message": why}
    never = {"name": "clicks-3c", "at": at, "outcome": "Rejected", "message": "no such module"}
    kubectl = Kubectl(job(revisions=[first, went, never]))
    status, out, _ = plugin(kubectl, "revisions", "clicks")
    lines = out.splitlines()
    assert status == 0
    assert [line.split()[0] for line in lines] == ["NAME", "clicks-3c", "clicks-2b", "clicks-1a"]
    assert lines[2].endswith(f"RolledBack  {change} ({why})")
    assert lines[1].endswith("Rejected    no such module")
    _, out, _ = plugin(kubectl, "revisions", "clicks", "-o", "json")
    assert json.loads(out)["revisions"][0]["name"] == "clicks-3c"


def test_a_job_that_never_began_has_no_revisions(plugin):
    status, out, _ = plugin(Kubectl(job()), "revisions", "clicks")
    assert (status, out.split()) == (0, ["NAME", "BEGAN", "DRIVER", "OUTCOME", "CHANGED"])


def test_a_savepoint_is_an_object_that_is_waited_for(plugin):
    kubectl = Kubectl(job())
    kubectl.steps = [{}, {"state": "InProgress"}, {"state": "Completed", "path": "s3://b/friday"}]
    status, out, err = plugin(kubectl, "savepoint", "clicks", "friday")
    assert (status, out) == (0, "s3://b/friday\n")
    assert "clicks-friday: InProgress" in err
    (made,) = kubectl.made
    assert made["metadata"] == {"name": "clicks-friday", "labels": {"moorage.dev/job": "clicks"}}
    assert made["spec"] == {"jobRef": {"name": "clicks"}, "type": "Savepoint", "name": "friday"}


def test_a_savepoint_that_fails_says_why(plugin):
    kubectl = Kubectl(job())
    kubectl.steps = [{}, {"state": "Failed", "message": "the store is full"}]
    status, _, err = plugin(kubectl, "savepoint", "clicks", "friday")
    assert status == 2
    assert "the store is full" in err


def test_a_savepoint_of_a_job_that_is_not_there_makes_nothing(plugin):
    kubectl = Kubectl()
    status, _, err = plugin(kubectl, "savepoint", "nobody", "friday")
    assert (status, kubectl.made) == (2, [])
    assert "NotFound" in err


def seen(**status):
    return {"observedGeneration": 2, **status}


def test_another_parallelism_is_waited_for_until_the_job_runs_with_it(plugin):
    kubectl = Kubectl(job())
    wider = {"observedParallelism": 4, "maxParallelism": 128}
    kubectl.steps = [
        {},
        seen(phase="Rescaling", conditions=conditions(Ready="False", Progressing="True")),
        seen(phase="Running", scaling=wider, conditions=conditions()),
    ]
    status, out, err = plugin(kubectl, "rescale", "clicks", 4)
    assert status == 0
    assert kubectl.patches == [{"spec": {"scaling": {"parallelism": 4}}}]
    assert "Rescaling Why" in err
    assert out.splitlines()[-1].split() == ["subtasks", "4"]


ASLEEP = conditions(Ready="False", Suspended="True")


@pytest.mark.parametrize(
    "order", [("rescale", "clicks", 4), ("restore", "clicks", "chk-7", "--yes")]
)
@pytest.mark.parametrize("phase", ["Suspended", "Finished"])
def test_what_a_job_that_sleeps_is_told_waits_until_it_is_resumed(plugin, order, phase):
    one = job(phase=phase, conditions=ASLEEP)
    one["spec"]["desiredState"] = "Suspended"
    kubectl = Kubectl(one)
    kubectl.steps = [{}, {}, seen()]
    status, out, err = plugin(kubectl, *order, "--timeout", 1, "-o", "json")
    assert status == 0, err
    assert "follows it after kubectl moorage resume clicks" in err
    assert not json.loads(out)["done"]


def test_what_a_job_that_sleeps_is_told_may_be_refused(plugin):
    one = job(phase="Suspended", conditions=ASLEEP)
    one["spec"]["desiredState"] = "Suspended"
    kubectl = Kubectl(one)
    bad = conditions(Ready="False", Suspended="True", SpecValid="False")
    kubectl.steps = [{}, seen(conditions=bad)]
    status, _, err = plugin(kubectl, "rescale", "clicks", 400)
    assert (status, "SpecValid: Why" in err) == (2, True)


def test_a_job_that_has_finished_is_suspended_already(plugin):
    kubectl = Kubectl(job(phase="Finished"))
    kubectl.steps = [{}, seen(phase="Finished", conditions=conditions(Ready="False"))]
    status, out, err = plugin(kubectl, "suspend", "clicks", "--timeout", 1)
    assert (status, "Finished" in out) == (0, True), err


def test_what_the_operator_refuses_ends_the_waiting(plugin):
    kubectl = Kubectl(job())
    blocked = conditions(Blocked="True")
    kubectl.steps = [{}, seen(phase="Blocked", conditions=blocked)]
    status, _, err = plugin(kubectl, "rescale", "clicks", 4)
    assert status == 2
    assert "Blocked: Why" in err


def test_a_job_beyond_its_limits_is_suspended_and_what_is_done_is_not_refused(plugin):
    """Its spec is shown as invalid, before and after."""
    kubectl = Kubectl(job())
    kubectl.steps = [
        {},
        seen(phase="Suspending", conditions=conditions(SpecValid="False", Progressing="True")),
        seen(phase="Suspended", conditions=conditions(SpecValid="False", Ready="False")),
    ]
    status, _, err = plugin(kubectl, "suspend", "clicks")
    assert (status, "SpecValid" in err) == (0, False)


def test_an_edit_that_waits_says_what_for():
    one = job(observedGeneration=1, conditions=conditions(Reconciled="False"))
    one["status"]["conditions"][-1] |= {"reason": "QuotaExceeded", "message": "no room"}
    assert job_outcome(one, lambda _: False) == "Running QuotaExceeded: no room"


def test_a_moment_without_an_api_server_does_not_end_the_waiting(plugin):
    kubectl = Kubectl(job())
    wider = {"observedParallelism": 4, "maxParallelism": 128}
    kubectl.steps = [{}, seen(phase="Running", scaling=wider, conditions=conditions())]
    away = iter(["Unable to connect to the server: EOF", "no answer in time"])

    def ask(arguments, text=""):
        if arguments[0] == "get" and (why := next(away, None)) is not None:
            return subprocess.CompletedProcess([], 1, "", why)
        return kubectl(arguments, text)

    status, out, err = plugin(ask, "rescale", "clicks", 4)
    assert status == 0, err
    assert out.splitlines()[-1].split() == ["subtasks", "4"]


def test_what_is_deleted_meanwhile_is_not_waited_for(plugin):
    kubectl = Kubectl(job())

    def ask(arguments, text=""):
        if arguments[0] == "get":
            kubectl.jobs.clear()
        return kubectl(arguments, text)

    status, _, err = plugin(ask, "rescale", "clicks", 4)
    assert status == 2
    assert "NotFound" in err


def test_what_the_operator_has_not_seen_yet_is_not_taken_for_done():
    def done(_found):
        return True

    one = job()
    one["metadata"]["generation"] = 2
    assert job_outcome(one, done) == "Running"
    one["status"]["observedGeneration"] = 2
    assert job_outcome(one, done) is None


@pytest.mark.parametrize(
    ("source", "fields"),
    [
        ("friday", {"mode": "Snapshot", "snapshotName": "clicks-friday", "path": ""}),
        ("clicks-friday", {"mode": "Snapshot", "snapshotName": "clicks-friday", "path": ""}),
        ("chk-7", {"mode": "Path", "path": CHECKPOINT, "snapshotName": ""}),
        ("s3://other/one", {"mode": "Path", "path": "s3://other/one", "snapshotName": ""}),
    ],
)
def test_a_restore_names_what_is_meant_and_raises_the_nonce(plugin, source, fields):
    kubectl = Kubectl(job(), snapshot("clicks-friday"))
    kubectl.steps = [{}, {}, seen(reconciliation={"restoreNonce": 5})]
    status, _, _ = plugin(kubectl, "restore", "clicks", source, "--yes")
    assert status == 0
    expected = fields | {"nonce": 5, "allowNonRestoredState": False, "claimMode": "NoClaim"}
    version = {"resourceVersion": "100"}
    assert kubectl.patches == [{"spec": {"restore": expected}, "metadata": version}]


def test_a_restore_after_a_manifest_without_the_last_one_has_a_nonce_that_is_followed(plugin):
    """A nonce of the spec alone is one that the operator has followed: nothing would happen."""
    found = job()
    del found["spec"]["restore"]
    kubectl = Kubectl(found)
    kubectl.steps = [{}, {}, {}, seen(reconciliation={"restoreNonce": 5})]
    status, _, err = plugin(kubectl, "restore", "clicks", "chk-7", "--yes")
    assert (status, kubectl.steps) == (0, []), err
    assert kubectl.patches[0]["spec"]["restore"]["nonce"] == 5


def test_a_restore_finds_a_snapshot_of_its_own_job_alone(plugin):
    """A snapshot final of clicks-eu and a snapshot eu-final of clicks want the same name."""
    other, own = snapshot("clicks-eu-final"), snapshot("clicks-eu-final-1a2b")
    other["spec"] |= {"jobRef": {"name": "clicks-eu"}, "name": "final"}
    own["spec"]["name"] = "eu-final"
    kubectl = Kubectl(job(), other)
    status, _, err = plugin(kubectl, "restore", "clicks", "eu-final", "--yes", "--no-wait")
    assert (status, kubectl.patches) == (2, [])
    assert "there is no snapshot eu-final" in err
    kubectl = Kubectl(job(), other, own)
    status, _, err = plugin(kubectl, "restore", "clicks", "eu-final", "--yes", "--no-wait")
    assert status == 0, err
    (patch,) = kubectl.patches
    assert patch["spec"]["restore"]["snapshotName"] == "clicks-eu-final-1a2b"


def test_a_restore_changes_nothing_unless_it_is_confirmed_and_its_snapshot_complete(
    plugin, monkeypatch
):
    monkeypatch.setattr("sys.stdin", io.StringIO("no\n"))
    kubectl = Kubectl(job(), snapshot("clicks-bad", "Failed"))
    assert plugin(kubectl, "restore", "clicks", "bad", "--yes")[0] == 2
    assert plugin(kubectl, "restore", "clicks", "none", "--yes")[0] == 2
    assert plugin(kubectl, "restore", "clicks", "chk-7")[0] == 1
    assert kubectl.patches == []


BRIEFLY = ("--timeout", 1)


def changed(found, **spec):
    """Somebody's change of a job: without fields of the spec, of its status."""
    found["spec"] |= spec
    meta = found["metadata"]
    meta["resourceVersion"] = str(int(meta["resourceVersion"]) + 1)


def test_of_two_restores_at_once_the_second_is_refused(plugin):
    kubectl = Kubectl(job())
    other = {"nonce": 5, "mode": "Path", "path": "s3://other/two"}
    kubectl.meanwhile = [lambda found: changed(found, restore=other)]
    status, out, err = plugin(kubectl, "restore", "clicks", "s3://other/one", "--yes", *BRIEFLY)
    assert (status, out, kubectl.patches) == (2, "", [])
    assert "told meanwhile to restore something else: clicks; look" in err
    assert "ask again" in err


def test_a_restore_of_a_job_whose_status_changes_is_made_all_the_same(plugin):
    kubectl = Kubectl(job())
    kubectl.meanwhile = [changed, changed]
    kubectl.steps = [{}, {}, {}, {}, seen(reconciliation={"restoreNonce": 5})]
    status, _, err = plugin(kubectl, "restore", "clicks", "s3://other/one", "--yes", *BRIEFLY)
    assert status == 0, err
    (patch,) = kubectl.patches
    assert patch["spec"]["restore"]["nonce"] == 5
    assert patch["metadata"] == {"resourceVersion": "102"}


def test_a_restore_of_a_job_that_changes_all_the_time_is_given_up(plugin):
    kubectl = Kubectl(job())
    kubectl.meanwhile = [changed] * 99
    status, _, err = plugin(kubectl, "restore", "clicks", "s3://other/one", "--yes", *BRIEFLY)
    assert (status, kubectl.patches) == (2, [])
    assert "changed all the time: clicks" in err


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_a_restore_asks_nobody_where_a_program_reads(plugin, form):
    kubectl = Kubectl(job())
    status, out, err = plugin(kubectl, "restore", "clicks", "chk-7", "-o", form)
    assert (status, out, kubectl.patches) == (2, "", [])
    assert "add --yes" in err


@pytest.mark.parametrize(
    ("verb", "state", "phase"),
    [("suspend", "Suspended", "Suspended"), ("resume", "Running", "Stable")],
)
def test_a_job_is_sent_to_sleep_and_woken(plugin, verb, state, phase):
    kubectl = Kubectl(job())
    kubectl.steps = [seen(phase="Suspending"), seen(phase=phase)]
    status, out, _ = plugin(kubectl, verb, "clicks")
    assert status == 0
    assert kubectl.patches == [{"spec": {"desiredState": state}}]
    assert phase in out


@pytest.mark.parametrize(
    ("verb", "steps", "found"),
    [
        (["suspend", "clicks"], [seen(phase="Suspended")], {"done": True, "phase": "Suspended"}),
        (["resume", "clicks", "--no-wait"], [], {"done": False, "job": "clicks"}),
        (
            ["savepoint", "clicks", "friday"],
            [{}, {"state": "Completed", "path": "s3://b/f"}],
            {"done": True},
        ),
        (["savepoint", "clicks", "friday", "--no-wait"], [{}], {"done": False, "job": "clicks"}),
    ],
)
def test_what_was_ordered_is_there_for_programs(plugin, verb, steps, found):
    kubectl = Kubectl(job())
    kubectl.steps = steps
    status, out, _ = plugin(kubectl, *verb, "-o", "json")
    document = json.loads(out)
    assert (status, document["command"]) == (0, verb[0])
    assert document | found == document
    if verb[0] == "savepoint":
        waited = "--no-wait" not in verb
        assert document.keys() == SAVEPOINT
        assert (document["name"], document["snapshot"]) == ("friday", "clicks-friday")
        ordered = "s3://bucket/saves/friday?endpoint=http://s3:1&path_style=true"
        assert document["url"] == ("s3://b/f" if waited else ordered)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ([], ["status", "savepoint", "resume"]),
        (["sus"], ["suspend\tStop a job with its state kept; see resume.", ":4"]),
        (["status", ""], ["clicks", "counts", ":4"]),
        (["status", "-n", "streams", "co"], ["counts", ":4"]),
        (["restore", "clicks", "fri"], ["friday", ":4"]),
        (["status", "-o", "y"], ["yaml", ":4"]),
        (
            ["savepoint", "clicks", "x", "--no"],
            ["--no-wait\tWait for it, or order it alone.", ":4"],
        ),
        (["nothing", "like", "it"], [":4"]),
    ],
)
def test_kubectl_is_told_what_may_come_next(words, found, monkeypatch):
    kubectl = Kubectl(job(), job("counts"), snapshot("friday"))
    monkeypatch.setattr(completion, "kubectl_of", lambda *_: kubectl)
    lines = [*completion.choices(module.plugin, words)]
    if words:
        assert lines == found
    else:
        assert {line.partition("\t")[0] for line in lines} >= set(found)


def test_where_no_cluster_answers_there_is_nothing_to_choose_from(monkeypatch):
    def refuses(_arguments, _text=""):
        return subprocess.CompletedProcess([], 1, "", "Unable to connect to the server")

    monkeypatch.setattr(completion, "kubectl_of", lambda *_: refuses)
    assert [*completion.choices(module.plugin, ["status", ""])] == [":4"]


def test_the_script_that_kubectl_calls_gives_up_on_a_cluster_that_is_silent(
    tmp_path, monkeypatch, capsys
):
    kubectl = tmp_path / "kubectl"
    kubectl.write_text("#!/bin/sh\nexec sleep 60\n")
    kubectl.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(completion, "_SECONDS", 0.05)
    for words, told in ((["status", ""], ":4\n"), (["stat"], "status\t")):
        monkeypatch.setattr("sys.argv", ["kubectl_complete-moorage", *words])
        with pytest.raises(SystemExit, match="0"):
            completion.main()
        assert capsys.readouterr().out.startswith(told)


def test_what_takes_too_long_goes_on_without_who_waits():
    now = iter(range(100))
    cluster = Cluster(Kubectl(job()), lambda _seconds: None, lambda: next(now))
    with pytest.raises(Refused, match="it goes on"):
        cluster.wait(JOBS, "clicks", 3, lambda _found: "Rescaling")


def test_not_waiting_says_where_to_look(plugin):
    kubectl = Kubectl(job())
    status, out, err = plugin(kubectl, "suspend", "clicks", "--no-wait")
    assert (status, out) == (0, "")
    assert "kubectl moorage status clicks" in err
    assert [call[:2] for call in kubectl.calls] == [["patch", JOBS]]
    assert SNAPSHOTS not in str(kubectl.calls)


def test_without_kubectl_it_says_to_install_it(monkeypatch, capsys):
    monkeypatch.setenv("PATH", "/nonexistent")
    assert module.run_plugin(["status"]) == 2
    assert "install it" in capsys.readouterr().err
