"""`moorage state get --live`: one key of a running job, by its socket or its driver's endpoint."""

import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any

import pytest

from moorage.cluster.board import Board, DriverAttempt
from moorage.cluster.endpoint import Endpoint
from moorage.cluster.metrics import DriverMetrics
from moorage.driver.control import ControlServer, control_path
from moorage.driver.lookup_requests import LookupRequest
from moorage.driver.lookups import StateLookups, StateMoving
from moorage.driver.requests import Requests
from moorage.driver.run_status import run_status
from moorage.driver.settings import JobSettings
from moorage.driver.types import JobProgress
from moorage.engine.kv_states import UnknownKvState
from moorage.redaction import Redactor
from moorage_api import load_manifest

TOKEN = "a-token-of-twenty-chars"  # noqa: S105


class Answers(StateLookups):
    """What a job answers for the key `ann`; others have nothing."""

    def __init__(self, kind, value, **more):
        super().__init__()
        self.kind, self.value, self.more = kind, value, more
        self.questions: list[LookupRequest] = []

    def submit(self, request):
        answered: Future[bytes] = Future()
        answered.set_result(json.dumps(self._said(request)).encode())
        return answered

    def _said(self, request):
        self.questions.append(request)
        found = request.keys == ["ann"]
        result = {
            "key": list(request.keys),
            "keyGroup": 12,
            "found": found,
            "value": self.value if found else None,
            "epoch": 41,
            "next": None,
        }
        return {
            "format": 1,
            "queryable": request.name,
            "uid": "visits",
            "state": "count",
            "kind": self.kind,
            "byNamespace": False,
            "results": [result | self.more],
        }


STATUS = run_status("clicks", "file:///state", JobProgress(), datetime.now(UTC))


@pytest.fixture
def running(job_file, monkeypatch):
    """Makes a job that runs from the manifest and answers so."""
    with tempfile.TemporaryDirectory(prefix="m-", dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        settings = JobSettings.of(load_manifest(job_file), job_file.parent)
        made = []

        def run(answers):
            path = control_path(settings.checkpoint_dir)
            made.append(ControlServer(path, Requests(), answers, lambda: STATUS))
            return answers

        yield run
        for server in made:
            server.close()


def test_a_key_of_a_job_on_this_machine_is_printed(moorage, job_file, running):
    answers = running(Answers("value", {"n": 3}))
    assert moorage("state", "get", "--live", job_file, "counts", "ann") == (0, '{"n": 3}\n', "")
    assert answers.questions == [LookupRequest("counts", ["ann"], True)]


def test_as_json_it_has_the_epoch_that_left_it_so(moorage, job_file, running):
    running(Answers("map", [{"key": "x", "value": 1}]))
    status, out, _ = moorage("state", "get", "--live", job_file, "by_page", "ann", "-o", "json")
    assert status == 0
    assert json.loads(out) == {
        "format": 1,
        "command": "state get",
        "uid": "visits",
        "state": "count",
        "kind": "map",
        "key": ["ann"],
        "key_group": 12,
        "found": True,
        "value": [{"key": "x", "value": 1}],
        "by_namespace": False,
        "queryable": "by_page",
        "epoch": 41,
    }


def test_parts_of_a_key_are_asked_for_as_they_are_typed(moorage, job_file, running):
    answers = running(Answers("map", []))
    options = ["--map-key", "x", "--namespace", '[1, "eu"]']
    moorage("state", "get", "--live", job_file, "by_page", "ann", *options)
    moorage("state", "get", "--live", job_file, "by_page", "ann", "--map-key-prefix", "f")
    assert answers.questions == [
        LookupRequest("by_page", ["ann"], True, "x", namespace='[1, "eu"]'),
        LookupRequest("by_page", ["ann"], True, map_key_prefix="f"),
    ]


def test_a_key_that_has_nothing_is_no_error(moorage, job_file, running):
    running(Answers("value", 1))
    status, out, err = moorage("state", "get", "--live", job_file, "counts", "ben")
    assert (status, out) == (0, "")
    assert "the key has nothing here: state=counts key=ben key_group=12" in err


def test_a_job_that_does_not_run_is_said_to_be_started(moorage, job_file):
    status, out, err = moorage("state", "get", "--live", job_file, "counts", "ann")
    assert (status, out) == (2, "")
    assert "the job does not run on this machine" in err


def test_a_process_that_knows_little_of_a_job_takes_its_refusals_as_what_they_are(
    job_file, running
):
    class Refuses(Answers):
        def submit(self, request):
            self.questions.append(request)
            answered: Future[Any] = Future()
            moves = len(self.questions) == 1
            why = StateMoving("moving") if moves else UnknownKvState("there are: counts")
            answered.set_exception(why)
            return answered

    answers = running(Refuses("value", 1))
    ask = [
        *(sys.executable, "-m", "moorage.cli", "state", "get", "--live", str(job_file)),
        *("nothing", "ann"),
    ]
    environment = {**os.environ, "TMPDIR": tempfile.gettempdir()}
    asked = subprocess.run(ask, capture_output=True, text=True, env=environment, check=False)
    assert (asked.returncode, asked.stderr) == (2, "moorage: there are: counts\n")
    assert len(answers.questions) == 2, "it asks again while state moves"


def test_a_job_on_a_cluster_is_asked_by_the_address_of_its_endpoint(moorage, tmp_path):
    answers = Answers("list", ["a", "b"])
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    requests, metrics = Requests(), DriverMetrics("clicks", "team")
    board = Board(
        DriverAttempt(1, "clicks", "team", "u", "s3://x/y"), requests, Redactor({}, TOKEN)
    )
    endpoint = Endpoint(
        board, requests, metrics, TOKEN, page=str, lookups=answers, port=0, host="127.0.0.1"
    )
    try:
        address = f"http://127.0.0.1:{endpoint.port}"
        ask = ("state", "get", "--live", address, "pages", "ann")
        assert moorage(*ask, "--token-file", token) == (0, "a\nb\n", "")
        status, _, err = moorage(*ask)
        assert (status, "give --token-file FILE" in err) == (2, True)
        status, _, err = moorage(*ask, "--token-file", tmp_path / "none")
        assert (status, "the token cannot be read" in err) == (2, True)
        token.write_text("another-token-of-many")
        status, _, err = moorage(*ask, "--token-file", token)
        assert (status, "a bearer token is needed" in err) == (2, True)
    finally:
        endpoint.close()


@pytest.mark.parametrize("option", ["--namespace", "--token-file", "--map-key-prefix"])
def test_options_of_a_running_job_are_refused_without_live(moorage, job_file, option):
    status, _, err = moorage("state", "get", job_file, "a/b", "ann", option, "x")
    assert (status, "add --live" in err) == (2, True)


def test_a_file_that_is_no_manifest_is_refused(moorage, tmp_path):
    status, _, err = moorage("state", "get", "--live", tmp_path / "none.yaml", "counts", "ann")
    assert (status, "none.yaml" in err) == (2, True)
