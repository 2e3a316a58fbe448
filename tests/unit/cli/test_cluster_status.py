"""`kubectl moorage status`: what it shows of a job, its pods, and what the job's driver says."""

import base64
import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml
from moorage_testing.jobs import wait_until
from moorage_testing.kubectl_words import Kubectl, conditions, job, pod
from moorage_testing.page_samples import sample_run
from moorage_testing.tls import authority, mount
from rich.console import Console

from moorage.cli import watch
from moorage.cli.cluster_status import ClusterLook, DriverDoor, job_tree, looked, status_in
from moorage.cli.job_tree import drawn
from moorage.cli.kubectl import Cluster, Refused, forward_of
from moorage.cluster.board import Board, DriverAttempt
from moorage.cluster.endpoint import Endpoint
from moorage.cluster.metrics import DriverMetrics
from moorage.driver.requests import Requests
from moorage.driver.run_status import run_status
from moorage.redaction import Redactor

NOW = datetime(2026, 11, 23, 14, 20, tzinfo=UTC)
TOKEN = "a-token-of-twenty-chars"  # noqa: S105
SPACE = "team"
KEY = "s3cr3t-of-the-job"
PODS = (
    pod("clicks-3-exec-1", "executor", podIP="10.0.0.0"),
    pod("clicks-3-driver", "driver"),
    pod("clicks-3-exec-2", "executor", ready=False, podIPs=[{"ip": "10.0.0.1"}]),
)


def shown(view, width=None):
    """The lines of a view, as a pipe or a terminal of so many columns gets them."""
    console = Console(width=width or 1_000, highlight=False)
    with console.capture() as said:
        console.print(view)
    return said.get().splitlines()


def secret(**texts):
    return {"data": {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}}


@contextmanager
def endpoint(tls=None):
    """The endpoint of a driver with a run that has everything."""
    metrics = DriverMetrics("clicks", SPACE)
    attempt = DriverAttempt(3, "clicks", SPACE, "u-1", "s3://bucket/clicks")
    board = Board(attempt, Requests(), Redactor({"AWS_SECRET_ACCESS_KEY": KEY}))
    metrics.show(board)
    board(replace(sample_run().facts().progress, message=f"the key is {KEY}"))
    made = Endpoint(board, Requests(), metrics, TOKEN, page=str, tls=tls, port=0, host="127.0.0.1")
    try:
        yield made
    finally:
        made.close()


def of(kubectl, port=None, refusal=""):
    """The cluster behind kubectl, with a way to the driver's port."""

    @contextmanager
    def forward(service, to):
        assert (service, to) == ("clicks-driver", 7780)
        if port is None:
            raise Refused(refusal)
        yield port

    return Cluster(kubectl, lambda _seconds: None, forward=forward)


def look_at(cluster):
    door = DriverDoor(cluster)
    try:
        return looked(cluster, "clicks", door)
    finally:
        door.close()


def test_below_each_executor_are_the_subtasks_whose_state_it_has():
    one = job(conditions=conditions(Degraded="True"))
    kubectl = Kubectl(one, pods=PODS)
    kubectl.secrets["clicks-scrape"] = secret(token=TOKEN)
    with endpoint() as driver:
        lines = shown(drawn(job_tree(look_at(of(kubectl, driver.port)), NOW)))
    assert lines[:2] == ["clicks  Running", "! Degraded: Why"]
    at = lines.index("├── 4 subtasks of 128 key groups")
    assert lines[at : at + 9] == [
        "├── 4 subtasks of 128 key groups",
        "├── driver clicks-3-driver: Running, 1/1 ready, 2 restarts, on node1",
        "│   ├── executor clicks-3-exec-1: Running, 2/2 ready, 2 restarts, on node1",
        (
            "│   │   ├── sessions 0: key groups 0 to 31, 80,000 rows in, 36,000 out, "
            "last epoch 300 ms, state 1.0 MiB"
        ),
        (
            "│   │   ├── sessions 2: key groups 64 to 95, 40,000 rows in, 36,000 out, "
            "last epoch 300 ms, state 3.0 MiB"
        ),
        (
            "│   │   ├── join 0: key groups 0 to 31, 80,000 rows in, 36,000 out, "
            "last epoch 300 ms, state 1.0 MiB"
        ),
        (
            "│   │   └── join 2: key groups 64 to 95, 40,000 rows in, 36,000 out, "
            "last epoch 300 ms, state 3.0 MiB"
        ),
        "│   └── executor clicks-3-exec-2: Running, 1/2 ready, 2 restarts, on node1",
        (
            "│       ├── sessions 1: key groups 32 to 63, 40,000 rows in, 36,000 out, "
            "last epoch 300 ms, state 2.0 MiB"
        ),
    ]
    assert lines[-3:] == [
        "├── restarts: 1, last - ago, DriverLost: node gone",
        "├── checkpoint: 7, 30s ago, epoch 40, 1.0 KiB",
        "└── savepoint: none yet",
    ]


def test_what_the_driver_tells_has_no_secrets_in_it():
    kubectl = Kubectl(job(), pods=PODS)
    kubectl.secrets["clicks-scrape"] = secret(token=TOKEN)
    with endpoint() as driver:
        found = look_at(of(kubectl, driver.port)).run
    assert found.message == "the key is ***"


def test_with_tls_the_driver_is_believed_by_the_authority_of_the_jobs_secret(tmp_path):
    one = job()
    one["metadata"]["namespace"] = SPACE
    one["spec"]["security"] = {"tls": {"secretName": "clicks-tls"}}
    kubectl = Kubectl(one, pods=PODS)
    kubectl.secrets["clicks-scrape"] = secret(token=TOKEN)
    kubectl.secrets["clicks-tls"] = secret(**{"ca.crt": authority()})
    with endpoint(tls=mount(tmp_path / "tls")) as driver:
        assert len(look_at(of(kubectl, driver.port)).run.subtasks) == 8
        kubectl.secrets["clicks-tls"] = secret(**{"ca.crt": authority("other-ca")})
        found = look_at(of(kubectl, driver.port))
    assert found.run is None
    assert "certificate is not believed" in found.problem


def missing(kubectl, port=None, refusal="pods is forbidden"):
    lines = shown(drawn(job_tree(look_at(of(kubectl, port, refusal)), NOW)))
    assert lines[1:4] == [
        "├── stream: epoch 41, 12.5 rows/s, busy 0.40, state 2.0 KiB",
        "├── 2 subtasks of 128 key groups",
        "├── driver clicks-3-driver: Running, 1/1 ready, 2 restarts, on node1",
    ]
    (told,) = [line for line in lines if line.startswith("├── subtasks are not shown: ")]
    return told


def test_where_the_driver_cannot_be_asked_one_line_says_why_and_the_rest_is_there():
    kubectl = Kubectl(job(), pods=PODS)
    assert "NotFound" in missing(kubectl)  # no such Secret
    kubectl.secrets["clicks-scrape"] = secret(other="x")
    assert "the Secret clicks-scrape has no token that can be read" in missing(kubectl)
    kubectl.secrets["clicks-scrape"] = secret(token="of another job, and long enough")  # noqa: S106
    assert "the driver cannot be asked: pods is forbidden" in missing(kubectl)
    with endpoint() as driver:
        assert "a bearer token is needed" in missing(kubectl, driver.port)
        closed = driver.port
    assert "does not answer" in missing(kubectl, closed)


def test_another_driver_is_asked_at_once_where_the_one_before_has_ended():
    kubectl = Kubectl(job(), pods=PODS)
    kubectl.secrets["clicks-scrape"] = secret(token=TOKEN)
    ports: list[int] = []
    cluster = of(kubectl)
    cluster.forward = lambda _service, _port: nullcontext(ports[-1])
    door = DriverDoor(cluster)
    for _ in range(2):
        with endpoint() as driver:
            ports.append(driver.port)
            assert looked(cluster, "clicks", door).run is not None
            assert looked(cluster, "clicks", door).run is not None
    door.close()


def test_a_driver_of_an_earlier_release_is_told_as_what_it_is():
    kubectl = Kubectl(job(), pods=PODS)
    kubectl.secrets["clicks-scrape"] = secret(token=TOKEN)

    class Earlier(BaseHTTPRequestHandler):
        def do_GET(self):
            body = json.dumps({"error": {"code": "not_found", "message": "no such path"}}).encode()
            self.send_response(404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_what):
            """Nobody reads it."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Earlier) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            told = missing(kubectl, server.server_port)
        finally:
            server.shutdown()
            thread.join()
    assert told.endswith("the driver is of an earlier release, which does not say")


def test_a_driver_that_does_not_run_is_not_asked():
    kubectl = Kubectl(job(), pods=[pod("clicks-3-exec-1", "executor")])
    found = look_at(of(kubectl))
    assert (found.run, found.problem) == (None, "no driver runs")
    assert ["get", "secrets", "clicks-scrape", "-o", "json"] not in kubectl.calls


def test_event_time_is_shown_as_far_as_the_status_has_it():
    one = job()
    one["status"]["job"] |= {
        "watermark": "2026-11-23T14:18:30Z",
        "watermarkOf": "sessions",
        "watermarkHeldBy": "clicks",
    }
    told = "2026-11-23 14:18:30Z, 1m30s behind the clock, waits for clicks"
    lines = shown(drawn(job_tree(ClusterLook(one), NOW)))
    assert lines[2] == f"├── watermark of sessions: {told}"
    one["status"]["job"] = {"watermarkOf": "join", "watermarkHeldBy": "payments"}
    lines = shown(drawn(job_tree(ClusterLook(one), NOW)))
    assert lines[2] == "├── watermark of join: none yet, waits for payments"


def test_a_job_that_has_no_status_yet_is_shown_too():
    one = job()
    del one["status"]
    lines = shown(drawn(job_tree(ClusterLook(one), NOW)))
    assert lines[0] == "clicks  Pending (wanted: Running)"
    assert lines[-1].endswith("none yet")


def test_what_is_wrong_says_since_when_and_a_pod_what_it_waits_for():
    wrong = conditions(Ready="False")
    wrong[0]["lastTransitionTime"] = "2026-11-23T14:00:00Z"
    waiting = {
        "name": "driver",
        "ready": False,
        "state": {"waiting": {"reason": "ImagePullBackOff"}},
    }
    unplaced = {
        "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}],
        "containerStatuses": None,
        "initContainerStatuses": None,
    }
    pods = [
        pod("clicks-3-driver", "driver", phase="Pending", containerStatuses=[waiting]),
        pod("clicks-3-exec-1", "executor", phase="Pending", **unplaced),
    ]
    lines = shown(drawn(job_tree(ClusterLook(job(conditions=wrong), pods), NOW)))
    assert lines[1] == "! Ready: Why (for 20m00s)"
    assert "driver clicks-3-driver: Pending, 0/1 ready, ImagePullBackOff, on node1" in lines[4]
    assert "Pending, 0/2 ready, Unschedulable, on node1" in lines[5]


def test_for_programs_there_is_the_same(plugin):
    kubectl = Kubectl(job(), pods=PODS)
    kubectl.secrets["clicks-scrape"] = secret(token=TOKEN)
    with endpoint() as driver:
        plugin.forward = lambda _service, _port: nullcontext(driver.port)
        for form, read in (("json", json.loads), ("yaml", yaml.safe_load)):
            status, out, err = plugin(kubectl, "status", "clicks", "-o", form)
            document = read(out)
            assert (status, err, document["problem"]) == (0, "", "")
            assert document["run"]["subtasks"][1]["key_groups"] == [32, 63]
            assert document["pods"][0]["name"] == "clicks-3-driver"
        status, out, _ = plugin(kubectl, "status", "clicks")
    assert "│   │   ├── sessions 0: key groups 0 to 31" in out


# -- screens ---------------------------------------------------------------------------------


def large():
    """A job of 200 subtasks on four executors, of which each has one that is busiest."""
    progress = sample_run().facts().progress
    sample = progress.subtasks[0]
    many = tuple(
        replace(
            sample,
            subtask=n,
            place=f"10.0.0.{n % 4}:7077",
            key_groups=(n, n),
            last_seconds=9.0 if n in {100, 101, 102, 103} else 0.1,
        )
        for n in range(200)
    )
    run = run_status("clicks", "s3://b/c", replace(progress, subtasks=many), NOW)
    pods = [pod("clicks-3-driver", "driver")]
    pods += [pod(f"clicks-3-exec-{n}", "executor", podIP=f"10.0.0.{n}") for n in range(4)]
    return job_tree(ClusterLook(job(), pods, run), NOW)


def test_on_a_screen_are_the_busiest_subtasks_and_how_many_more_there_are():
    lines = shown(drawn(large(), 24))
    assert len(lines) <= 24
    told = [line.strip("│├└─ ") for line in lines]
    for subtask in range(100, 104):
        assert any(line.startswith(f"sessions {subtask}: ") for line in told)
    assert told.count("and 49 more, less busy in the last epoch") == 4
    assert len(shown(drawn(large()))) > 200
    assert len(shown(drawn(large(), 300))) > 200


def test_on_a_narrow_terminal_lines_are_folded_below_the_branch_they_belong_to():
    lines = shown(drawn(large(), 24), width=60)
    assert max(map(len, lines)) <= 60
    at = next(n for n, line in enumerate(lines) if "sessions 100: " in line)
    assert lines[at + 1].startswith("│   │   │   ")


# -- again and again -------------------------------------------------------------------------


@pytest.fixture
def hurried(monkeypatch):
    monkeypatch.setattr(watch, "_EVERY_SECONDS", 0.0)


@pytest.mark.usefixtures("hurried")
def test_what_is_watched_is_a_block_for_each_look_until_the_job_is_gone(plugin):
    kubectl = Kubectl(job())
    calls = []

    def answer(arguments, text=""):
        calls.append(arguments)
        if len(calls) == 3:  # the second look: the API server is away for a moment
            return subprocess.CompletedProcess([], 1, "", "connection refused")
        if len(calls) == 6:
            kubectl.jobs.clear()
        return kubectl(arguments, text)

    status, out, err = plugin(answer, "status", "clicks", "--watch")
    assert status == 0
    blocks = [block.splitlines() for block in out.split("-- ")[1:]]
    assert [block[1] for block in blocks] == ["clicks  Running"] * 3
    assert err.splitlines() == [
        "moorage: not seen anew: connection refused",
        "moorage: clicks is gone: it was deleted",
    ]


@pytest.mark.usefixtures("hurried")
def test_for_programs_each_look_is_a_document(plugin):
    kubectl = Kubectl(job())
    kubectl.steps = [{"phase": "Running"}, {"phase": "Failed"}]

    def answer(arguments, text=""):
        if not kubectl.steps:
            kubectl.jobs.clear()
        return kubectl(arguments, text)

    status, out, _ = plugin(answer, "status", "clicks", "-w", "-o", "yaml")
    documents = [one for one in yaml.safe_load_all(out) if one]
    assert status == 0
    assert [one["phase"] for one in documents] == ["Running", "Failed", "Failed"]


def test_a_job_that_never_was_is_refused_and_not_waited_for(plugin):
    status, out, err = plugin(Kubectl(), "status", "nobody", "--watch")
    assert (status, out) == (2, "")
    assert "NotFound" in err
    assert err.endswith("; there is none in this namespace; -n names another\n")


@pytest.mark.parametrize("command", ["status", "history", "revisions"])
def test_a_name_that_is_misspelt_is_told_with_what_there_is(plugin, command):
    kubectl = Kubectl(job(), job("other"))
    assert plugin(kubectl, command, "clickz")[2].endswith("; did you mean clicks?\n")
    status, out, err = plugin(kubectl, command, "zzz")
    assert (status, out) == (2, "")
    assert err.endswith("; there is clicks, other\n")


def test_what_there_is_none_of_is_said(plugin):
    status, out, err = plugin(Kubectl(), "status")
    assert (status, out, err) == (0, "no job in this namespace; -n names another\n", "")
    status, out, err = plugin(Kubectl(job()), "history", "clicks")
    assert (status, out) == (0, "")
    assert err == "moorage: no snapshot yet: kubectl moorage savepoint clicks NAME takes one\n"


@pytest.mark.parametrize(
    ("said", "todo"),
    [
        ('error: context "nope" does not exist', "kubectl config get-contexts"),
        ("connection refused - did you specify the right host or port?", "check the kubeconfig"),
        ('error: the server doesn\'t have a resource type "jobs"', "docs/install.md"),
        ("Error from server (Forbidden): x is forbidden", "ask for this right"),
    ],
)
def test_what_kubectl_says_comes_with_what_to_do(plugin, said, todo):
    status, out, err = plugin(
        lambda *_words: subprocess.CompletedProcess([], 1, "", f"noise\n{said}\n"), "status"
    )
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"moorage: {said}; ")
    assert todo in err


# -- kubectl port-forward --------------------------------------------------------------------


@pytest.fixture
def kubectl_says(monkeypatch, tmp_path):
    """Puts a kubectl on the PATH that runs a script; its arguments are in the file returned."""

    def put(script):
        program, told = tmp_path / "kubectl", tmp_path / "told"
        program.write_text(f'#!/bin/sh\necho "$@" > {told}\n{script}\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        return told

    return put


def test_a_port_leads_to_the_service_while_it_is_open_and_nothing_is_left(kubectl_says):
    told = kubectl_says(
        'echo $$ > $0.pid; echo "Forwarding from 127.0.0.1:4242 -> 7780"; exec sleep 600'
    )
    with forward_of("prod", "streams")("clicks-driver", 7780) as port:
        assert port == 4242
        pid = int(told.with_name("kubectl.pid").read_text())
        os.kill(pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    words = told.read_text().split()
    assert words[:2] == ["--context=prod", "--namespace=streams"]
    assert words[2:] == ["port-forward", "service/clicks-driver", ":7780", "--address=127.0.0.1"]


def test_why_there_is_no_way_is_what_kubectl_says_last(kubectl_says):
    kubectl_says('echo first; echo "error: services is forbidden" >&2; exit 1')
    with pytest.raises(Refused, match=r"^error: services is forbidden$"):
        forward_of(None)("clicks-driver", 7780).__enter__()


SCRIPT = """
from moorage.cli import cluster_jobs
from moorage.cli.kubectl import Cluster
from moorage_testing.kubectl_words import Kubectl, job
cluster_jobs._cluster = lambda *_: Cluster(Kubectl(job()))
raise SystemExit(cluster_jobs.run_plugin(["status", "clicks", "--watch"]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_on_a_terminal_it_is_refreshed_in_place_and_ends_at_once_when_told(number):
    ours, theirs = os.openpty()
    paths = os.pathsep.join(filter(None, sys.path))
    environ = {**os.environ, "PYTHONPATH": paths, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdin=theirs, stdout=theirs, stderr=theirs, env=environ
    ) as process:
        os.close(theirs)
        said = bytearray()

        def read():
            with suppress(OSError):  # it has ended
                while piece := os.read(ours, 4096):
                    said.extend(piece)

        reader = threading.Thread(target=read)
        reader.start()
        try:
            # Twice: between two it moves up over what it said before.
            wait_until(lambda: said.count(b"clicks  Running") >= 2)
            process.send_signal(number)
            assert process.wait(30) == 0
        finally:
            process.kill()
            reader.join()
            os.close(ours)
    assert b"\x1b[1A\x1b[2K" in said
    assert said.rstrip().endswith(b"\x1b[?25h")  # the cursor is there again
    assert b"Traceback" not in said


def test_an_answer_that_is_no_text_is_refused_in_words():
    with pytest.raises(Refused, match="the driver, of another release, says it otherwise"):
        status_in(b'{"job":"clicks","phase":"starting\xa2"}')
