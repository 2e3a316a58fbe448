"""The parent of an executor's servers, as a process: what it survives, and what it leaves."""

import argparse
import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from moorage_testing.fresh_process import short_folder
from moorage_testing.jobs import wait_until

from moorage_state.errors import LocalDiskError, MoorageError, Retryable, UserError
from moorage_state.server import slots
from moorage_state.server.client import StateClient
from moorage_state.server.sidecar import Sidecar, Signs, backend_for, main
from moorage_state.server.slots import Slot, socket_path
from moorage_state.server.wire import AnotherServer
from moorage_state.tuning.resolved import DEFAULTS_VARIABLE

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
TOKEN = "secret"  # noqa: S105
SMALL = json.dumps(
    {
        "state.backend.rocksdb.memory.fixed-per-slot": "24mb",
        "state.backend.rocksdb.writebuffer.size": "1mb",
    }
)


def free_ports(count):
    """The first of `count` neighbouring ports that nobody uses."""
    for first in range(21_000 + os.getpid() % 8000, 32_000, count):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(contextlib.closing(socket.create_server(("127.0.0.1", port))))
            return first
    raise AssertionError("no free ports")


class Started:
    """A sidecar with two servers, on ports of its own."""

    def __init__(self, volume, token_file, *arguments):
        self.volume, self.port = volume, free_ports(3)
        command = [sys.executable, "-m", "moorage_state.server.sidecar", "--dir", str(volume)]
        command += ["--servers", "2", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--health-port", str(self.port + 2), "--token-file", str(token_file)]
        self.command = [*command, "--state-options", SMALL, *arguments]
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command, env=ENVIRONMENT)

    @property
    def health(self):
        """Status and text of /healthz; 0 when nobody answers."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port + 2}/healthz", timeout=5
            ) as r:
                return r.status, r.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def wait_until_ready(self):
        wait_until(lambda: self.health[0] == 200 or self.process.poll() is not None)
        assert self.process.poll() is None
        return self

    def connect(self, index=0, server="", timeout=20.0):
        return StateClient.connect(f"tcp:127.0.0.1:{self.port + index}", TOKEN, timeout, server)

    def pid(self, index=0):
        """The process id of a server that answers, or None."""
        try:
            with self.connect(index) as client:
                return client.ping()
        except Retryable:
            return None

    def end(self):
        self.process.terminate()
        return self.process.wait(30)


@pytest.fixture
def token_file(tmp_path):
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    return path


@pytest.fixture
def short_path():
    """Of a folder in which paths of sockets fit."""
    with short_folder() as folder:
        yield Path(folder)


@pytest.fixture
def sidecar(short_path, token_file):
    made = []

    def make(*arguments, volume=None):
        made.append(Started(volume or short_path / "volume", token_file, *arguments))
        return made[-1]

    yield make
    for one in made:
        one.process.kill()
        one.process.wait()
    for one in made:
        wait_until(lambda: one.pid(0) is None and one.pid(1) is None)  # noqa: B023 - used at once


def test_servers_listen_where_the_contract_says_and_all_ends_within_a_second_of_sigterm(sidecar):
    one = sidecar().wait_until_ready()
    for index in (0, 1):
        with one.connect(index) as near:
            path = socket_path(str(one.volume), near.server)
            assert path == f"{one.volume}/run/{index}.sock"
            with StateClient.connect(f"unix:{path}", TOKEN, server=near.server) as same:
                assert same.ping() == near.ping() != one.process.pid
    pids = [one.pid(0), one.pid(1)]
    began = time.monotonic()
    assert one.end() == 0
    assert time.monotonic() - began < 2.0
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert not list(one.volume.glob("run/*.sock"))


def test_a_killed_server_is_back_at_its_address_with_its_identity_and_its_state(
    sidecar, drive, key
):
    one = sidecar().wait_until_ready()
    with one.connect() as client:
        op = drive(client)
        op.open()
        op.epoch({key(1, 1): b"kept"})
        before, identity = client.ping(), client.server
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: (pid := one.pid()) and pid != before)
    with one.connect(server=identity) as client:
        op.api = client
        op.open()
        assert op.read() == {key(1, 1): b"kept"}
    wait_until(lambda: "restarts=1" in one.health[1])


def test_a_killed_parent_takes_its_servers_with_it_and_its_successor_finds_the_volume(
    sidecar, drive, key
):
    one = sidecar("--grace", "60").wait_until_ready()
    with one.connect() as client:
        op = drive(client)
        op.open()
        op.epoch({key(1, 1): b"kept"})
        identity = client.server
    one.process.kill()
    one.process.wait()
    one.start()
    one.wait_until_ready()
    with one.connect(server=identity) as client:
        op.api = client
        op.open()
        assert op.read() == {key(1, 1): b"kept"}


def test_a_server_that_hangs_is_killed_and_started_again(sidecar):
    one = sidecar("--hung-after", "2").wait_until_ready()
    before = one.pid(1)
    os.kill(before, signal.SIGSTOP)
    wait_until(lambda: not Path(f"/proc/{before}").exists())
    assert wait_until(lambda: one.pid(1)) != before
    assert one.health[0] == 200


def starts(*outcomes):
    """A sidecar whose first starts take so many seconds each, and fail; and what each was given."""
    now, given, left = [0.0], [], list(outcomes)

    def start(seconds):
        given.append(seconds)
        if not left:
            raise LocalDiskError("no more")
        now[0] += left.pop(0)
        raise Retryable("state server did not start")

    one = Sidecar(start, clock=lambda: now[0])
    replaced: Any = one
    replaced._ending = SimpleNamespace(wait=lambda _seconds: False)
    return one, given


def test_first_starts_that_are_too_slow_get_more_and_more_time():
    one, given = starts(60.0, 120.0, 240.0, 480.0, 480.0)
    with pytest.raises(LocalDiskError):
        one._started()
    assert given == [60.0, 120.0, 240.0, 480.0, 480.0, 480.0]


def test_first_starts_that_are_refused_are_tried_for_a_minute():
    one, given = starts(*[10.0] * 30)
    with pytest.raises(Retryable):
        one._started()
    assert given == [60.0] * 7


@pytest.mark.parametrize(("slow", "patience"), [(0, 60.0), (1, 240.0), (3, 960.0)])
def test_a_sidecar_whose_starts_are_slow_is_sick_later(slow, patience):
    now = [1.0]
    one = Sidecar(lambda _seconds: None, clock=lambda: now[0])  # type: ignore[arg-type,return-value]  # a stand-in
    one._group = SimpleNamespace(pids=[1], slow_starts=slow)  # type: ignore[assignment]  # a stand-in
    one._sick_since, one.failure = 1.0, "it does not start"
    now[0] = 1.0 + patience
    assert one.health()[0]
    now[0] += 1.0
    assert one.health() == (False, "it does not start")


def test_a_server_that_starts_is_not_taken_for_one_that_hangs():
    now, ticks, killed = [0.0], [0], []

    def wait(_seconds):
        now[0], ticks[0] = now[0] + 1.0, ticks[0] + 1
        return ticks[0] > 90

    def away(*_args):
        raise Retryable("nobody answers")

    one = Sidecar(
        lambda _seconds: None,  # type: ignore[arg-type,return-value]  # a stand-in
        hung_seconds=30.0,
        look=lambda _pid: Signs(0, 0.0, waits_for_disk=False),
        clock=lambda: now[0],
    )
    one._ending = SimpleNamespace(wait=wait)  # type: ignore[assignment]  # a stand-in
    one._watch(
        SimpleNamespace(  # type: ignore[arg-type]  # a stand-in
            pids=[7],
            is_starting=lambda _index: now[0] <= 50.0,
            connect=away,
            kill=lambda *which: killed.append((now[0], *which)),
        ),
        0,
    )
    assert killed == [(80.0, 0, 7)]


def test_a_server_that_only_paused_is_left_alone(sidecar):
    one = sidecar("--hung-after", "30").wait_until_ready()
    before = one.pid(1)
    os.kill(before, signal.SIGSTOP)
    looked = one.health
    with contextlib.suppress(MoorageError), one.connect(1, timeout=0.5) as client:
        client.ping()
    os.kill(before, signal.SIGCONT)
    assert wait_until(lambda: one.pid(1)) == before
    assert looked[0] == 200


def test_a_full_volume_costs_the_attempt_and_not_the_server(sidecar, drive, key):
    one = sidecar().wait_until_ready()
    with one.connect() as client:
        op = drive(client)
        op.open()
        op.epoch({key(1, 1): b"before"})
        for pid in (one.process.pid, one.pid()):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (64_000, resource.RLIM_INFINITY))
        with pytest.raises(LocalDiskError, match="delta"):
            op.prepare({key(1, 2): bytes(100_000)})
        assert op.read() == {key(1, 1): b"before"}
    assert one.health[0] == 200
    before = one.pid()
    os.kill(before, signal.SIGKILL)  # on a full volume, too, a server comes back
    assert wait_until(one.pid) != before
    with one.connect() as client:
        op.api = client
        op.open()
        assert op.read() == {key(1, 1): b"before"}


def test_two_sidecars_of_one_volume_have_places_of_their_own(sidecar, drive, key):
    one = sidecar().wait_until_ready()
    two = sidecar().wait_until_ready()
    with one.connect() as first, two.connect() as second:
        assert socket_path("v", first.server) == "v/run/0.sock"
        assert socket_path("v", second.server) == "v/slot-1/run/0.sock"
        here, there = drive(first), drive(second)
        here.open()
        there.open()
        here.epoch({key(1, 1): b"first"})
        there.epoch({key(1, 1): b"second"})
        assert (here.read(), there.read()) == ({key(1, 1): b"first"}, {key(1, 1): b"second"})
        identity = first.server
    assert one.end() == 0
    three = sidecar().wait_until_ready()
    with three.connect(server=identity) as client:
        assert client.server == identity


def test_another_server_at_the_address_is_recognised_before_the_token_is_used(sidecar):
    one = sidecar().wait_until_ready()
    with one.connect() as client:
        identity = client.server
    address = f"tcp:127.0.0.1:{one.port + 1}"
    for token in (TOKEN, "that of another job"):
        with pytest.raises(AnotherServer, match="another state server"):
            StateClient.connect(address, token, server=identity)
    with pytest.raises(UserError, match="token is wrong"):
        StateClient.connect(address, "guess")


def test_only_the_health_path_is_answered(sidecar):
    one = sidecar().wait_until_ready()
    with pytest.raises(urllib.error.HTTPError, match="404") as refused:
        urllib.request.urlopen(f"http://127.0.0.1:{one.port + 2}/", timeout=5)
    refused.value.close()
    with socket.create_connection(("127.0.0.1", one.port + 2)) as slow:
        slow.sendall(b"GET /hea")
        assert one.health[0] == 200


@pytest.mark.scenario(44)
def test_what_another_lineage_left_on_the_volume_is_deleted(host, drive, key):
    op = drive(host)
    op.open()
    op.epoch({key(1, 1): b"old"})
    with pytest.raises(Retryable, match="open"):
        host.adopt("new")
    host.release_range(op.lease)
    assert host.adopt("new")
    assert not host.adopt("new")
    op = drive(host, run="f2r0")
    op.open()
    op.epoch({key(1, 1): b"new"})
    host.release_range(op.lease)
    assert not host.adopt("new")
    assert list((host._local_dir / "ranges").glob("*/*"))
    assert host.adopt("other")
    assert not list((host._local_dir / "ranges").glob("*/*"))


def test_a_place_keeps_its_identity_and_is_free_when_its_holder_ends(tmp_path):
    with Slot.take(tmp_path) as one, Slot.take(tmp_path) as two:
        names = [one.identity, two.identity]
        assert (one.number, two.number, two.root) == (0, 1, tmp_path / "slot-1")
    with Slot.take(tmp_path) as one, Slot.take(tmp_path) as two:
        assert {one.identity, two.identity} == {*names}
    (tmp_path / "run" / "ID").write_text("half")
    with Slot.take(tmp_path) as one, Slot.take(tmp_path) as two:
        found = {one.number: one.identity, two.number: two.identity}
        assert found[0] != names[0]
        assert found[0].endswith("-0")


def test_of_its_places_a_job_gets_the_one_that_it_was_in_last(tmp_path):
    now = time.time()
    with Slot.take(tmp_path, "a/one") as ends, Slot.take(tmp_path, "a/one") as begins:
        assert [ends.number, begins.number] == [0, 1]
        os.utime(ends.root / "SLOT", (now - 60, now - 60))
    with Slot.take(tmp_path, "a/one") as after:
        assert after.number == 1
        os.utime(after.root / "SLOT", (now - 120, now - 120))
    with Slot.take(tmp_path, "a/one") as again:
        assert again.number == 0


def test_a_job_gets_the_places_that_it_had_on_a_volume_of_many(tmp_path):
    with Slot.take(tmp_path, "a/one") as one, Slot.take(tmp_path, "a/two") as two:
        ours = two.identity
        assert [one.number, two.number] == [0, 1]
    with Slot.take(tmp_path, "a/two") as again, Slot.take(tmp_path, "a/two") as more:
        assert again.identity == ours
        assert more.number == 2, "what another job may come back to is left to it"
    with Slot.take(tmp_path, "a/one") as first:
        assert first.number == 0


def test_a_place_that_its_job_left_a_day_ago_is_anybodys(tmp_path):
    now = time.time()
    with Slot.take(tmp_path, "a/gone"):
        pass
    with Slot.take(tmp_path, "a/new", lambda: now + 3600) as other:
        assert other.number == 1
    with Slot.take(tmp_path, "a/third", lambda: now + 90_000) as third:
        assert third.number == 0


def test_a_place_that_is_in_use_for_days_is_no_place_that_was_left(tmp_path):
    later = time.time() + 200_000
    times = iter([later - 200_000, later])
    with Slot.take(tmp_path, "a/one", lambda: next(times)) as one:
        one.sign()
    with Slot.take(tmp_path, "a/two", lambda: later + 3600) as two:
        assert two.number == 1


def test_with_all_other_places_taken_that_of_another_job_is_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(slots, "_MOST_SLOTS", 2)
    with Slot.take(tmp_path, "a/one"), Slot.take(tmp_path, "a/two"):
        pass
    with Slot.take(tmp_path, "a/one"), Slot.take(tmp_path, "a/one") as second:
        assert second.number == 1
        with pytest.raises(Retryable, match="taken"):
            Slot.take(tmp_path, "a/three")


@pytest.mark.parametrize("server", ["", "abc", "abc.0", "abc-x.0", "abc-0.x"])
def test_a_server_that_is_in_no_place_has_no_socket_on_a_volume(server):
    assert socket_path("v", server) == ""


def sidecar_backend(*, servers=4, memory=1024, **others):
    given = {"backend": "rocksdb", "state_options": "{}", "code": [], **others}
    return backend_for(argparse.Namespace(servers=servers, memory=memory, **given))


def sidecar_options(**given):
    return sidecar_backend(**given).tuned


def test_memory_is_shared_among_the_servers():
    options = sidecar_options()
    assert 200 << 20 < options.block_cache_bytes < 256 << 20
    assert 80 << 20 < options.write_buffers_bytes < 100 << 20
    assert sidecar_options(memory=1, servers=64).block_cache_bytes > 6 << 20


def test_a_sidecar_takes_what_the_manifest_says():
    named = {"state.backend.rocksdb.block.cache-size": "48mb"}
    options = sidecar_options(state_options=json.dumps(named))
    assert options.block_cache_bytes == 48 << 20
    assert options.write_buffers_bytes < 100 << 20


def test_what_the_image_says_holds_where_the_manifest_says_nothing(monkeypatch):
    defaults = {"state.backend.rocksdb.thread.num": "3", "state.backend.rocksdb.files.open": "99"}
    monkeypatch.setenv(DEFAULTS_VARIABLE, json.dumps(defaults))
    named = {"state.backend.rocksdb.thread.num": "5"}
    options = sidecar_options(state_options=json.dumps(named))
    assert (options.background_jobs, options.max_open_files) == (5, 99)


def test_state_in_memory_is_bounded_by_the_servers_share():
    assert sidecar_backend(backend="hashmap").memory_limit == 256 << 20
    named = {"state.backend.hashmap.memory-limit": "1g"}
    backend = sidecar_backend(backend="filesystem", state_options=json.dumps(named))
    assert (backend.identifier, backend.memory_limit) == ("hashmap", 1 << 30)


def test_a_backend_of_the_jobs_own_is_found_in_its_code(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "own_backend_here.py").write_text(
        "from sqlite_backend import SqliteStateBackend\n"
        "class Larger(SqliteStateBackend):\n"
        "    identifier = 'larger'\n"
    )
    named = json.dumps({"state.backend.larger.cache-kib": "99"})
    given = {"backend": "own_backend_here:Larger", "state_options": named}
    assert sidecar_backend(code=[tmp_path], **given).cache_kib == 99
    sys.modules.pop("own_backend_here")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"state_options": "["}, "not understood"),
        ({"state_options": '{"state.backend.rocksdb.x": "1"}'}, "not known"),
        ({"backend": "no-such"}, "no such state backend"),
        ({"backend": "no_such:Backend"}, "there is no module no_such"),
    ],
)
def test_options_that_are_none_are_refused(given, told):
    with pytest.raises(UserError, match=told):
        sidecar_options(**given)


def test_what_keeps_a_sidecar_from_starting_is_told(tmp_path, token_file, capsys, monkeypatch):
    monkeypatch.setattr("moorage_state.server.sidecar.end_signals", lambda: None)
    common = ["--servers", "1", "--token-file"]
    for arguments, told in [
        (["--dir", str(tmp_path), *common, str(tmp_path / "none")], "No such file"),
        (["--dir", f"{tmp_path}/{'x' * 100}", *common, str(token_file)], "too long"),
        (["--dir", str(token_file), *common, str(token_file)], "could not make a place"),
    ]:
        assert main(arguments) == 2
        assert told in capsys.readouterr().err
    (tmp_path / "empty").write_text("\n")
    assert main(["--dir", str(tmp_path), *common, str(tmp_path / "empty")]) == 2
    assert "token file is empty" in capsys.readouterr().err
