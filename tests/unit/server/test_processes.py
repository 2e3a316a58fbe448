"""Real server processes: how they start and end, who may talk to them, and what a crash leaves."""

import contextlib
import os
import random
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from moorage_testing.jobs import wait_until
from moorage_testing.tls import mount

from moorage_state.deltas import encode_frame
from moorage_state.errors import LocalDiskError, Retryable, UserError
from moorage_state.server import Lease, ServerGroup, process
from moorage_state.server.client import StateClient
from moorage_state.server.process import main
from moorage_state.server.wire import PROTOCOL_VERSION, AnotherServer, Connection

only_rocksdb = pytest.mark.parametrize("small", ["rocksdb"], indirect=True)
"""About files that RocksDB makes one by one; state in memory has one file."""

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.fixture
def group(tmp_path, small):
    with ServerGroup(1, tmp_path / "local", backend=small) as group:
        yield group


def state_of(pid):
    """The kernel's letter for what the process is doing, empty when there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def is_running(pid):
    return state_of(pid) not in ("", "Z")


def test_trap_4_servers_are_started_by_exec_and_end_with_their_group(tmp_path, small):
    with ServerGroup(2, tmp_path, backend=small) as group:
        sockets = [Path(address.removeprefix("unix:")) for address in group.addresses]
        for index, pid in enumerate(group.pids):
            assert b"moorage_state.server" in Path(f"/proc/{pid}/cmdline").read_bytes()
            assert group.token.encode() not in Path(f"/proc/{pid}/environ").read_bytes()
            assert group.token.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
            with group.connect(index) as client:
                assert client.ping() == pid
        assert all(len(str(path)) < 100 for path in sockets)
    assert not any(map(is_running, group.pids))
    assert not sockets[0].parent.exists()
    with pytest.raises(Retryable, match="was closed"):
        group.ensure_alive()


def test_a_dead_server_is_restarted_at_the_same_address(group):
    (before,), (pid,) = group.addresses, group.pids
    assert group.ensure_alive() == []
    with group.connect(0) as client:
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(Retryable):
            call_until_gone(client.ping)
    assert group.ensure_alive() == [0]
    assert group.addresses == [before]
    with group.connect(0) as client:
        assert client.ping() != pid


def test_a_server_ends_within_a_second_of_its_parents_word_whatever_it_does(group, drive, key):
    with group.connect(0) as client:
        op = drive(client)
        op.open()
        value = bytes(100)
        op.epoch({key(n % 64, n): value for n in range(100_000)})
        busy, begun = read_in_background(group, op)
        assert begun.wait(20)
        (pid,) = group.pids
        began = time.monotonic()
        group.close()
        assert not is_running(pid)
        assert time.monotonic() - began < 1.0
        busy.join()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_all_processes_leaves_servers_to_their_parent(group, number):
    with group.connect(0) as client:
        os.kill(group.pids[0], number)
        assert [client.ping() for _ in range(100)] == 100 * group.pids
    assert group.ensure_alive() == []


def read_in_background(group, op):
    begun = threading.Event()
    prefixes = [b"\0" + bytes([g]) for g in range(64)]

    def read():
        with group.connect(0) as client, contextlib.suppress(Retryable):
            while True:
                client.range(op.lease).scan_many(op.version, prefixes)
                begun.set()

    thread = threading.Thread(target=read)
    thread.start()
    return thread, begun


def call_until_gone(call):
    while True:
        call()


def test_servers_outlive_the_thread_that_started_them(tmp_path, small):
    groups = []
    thread = threading.Thread(target=lambda: groups.append(ServerGroup(1, tmp_path, backend=small)))
    thread.start()
    thread.join()
    with groups[0] as group:
        with group.connect(0) as client:
            assert client.ping() == group.pids[0]
        assert group.ensure_alive() == []


def stopped(group, index=0):
    os.kill(group.pids[index], signal.SIGKILL)
    return group.pids[index]


def test_a_start_that_is_too_slow_has_twice_the_time_from_then_on(tmp_path, small):
    with ServerGroup(1, tmp_path, backend=small) as group:
        seen = [stopped(group)]
        group._start_timeout = 1e-6
        for slow in (1, 2, 3, 3):
            with pytest.raises(Retryable, match="too slow"):
                group.ensure_alive()
            assert group.is_starting(0)
            assert group.slow_starts == slow
            seen.append(group.pids[0])
        assert len(set(seen)) == 5
        assert group._servers[0].patience == 8e-6
        group._start_timeout = 60.0
        assert group.ensure_alive() == [0]
        assert group.slow_starts == 0


def test_a_server_that_came_up_late_is_not_begun_anew(tmp_path, small):
    with ServerGroup(2, tmp_path, backend=small) as group:
        stopped(group)
        group._start_timeout = 1e-6
        with pytest.raises(Retryable, match="too slow"):
            group.ensure_alive()
        late = group.pids[0]
        output = group._servers[0].process.stdout
        assert output

        def answers():
            # It says that it is ready a moment after it listens.
            said = select.select([output], [], [], 0)[0]
            with contextlib.suppress(Retryable), group.connect(0) as client:
                return client.ping() if said else None

        assert wait_until(answers) == late
        assert group.ensure_alive() == [0]  # its ranges are to be opened again
        assert group.pids[0] == late
        assert group.ensure_alive() == []


def test_a_server_that_starts_and_has_time_left_is_not_begun_anew(tmp_path, small, monkeypatch):
    def look_away(_server):
        raise Retryable("somebody else asks")

    with ServerGroup(1, tmp_path, backend=small) as group:
        before = stopped(group)
        with monkeypatch.context() as patched:
            patched.setattr(group, "_wait_until_ready", look_away)
            with pytest.raises(Retryable, match="somebody else"):
                group.ensure_alive()
        starting = group.pids[0]
        assert starting != before
        assert group.ensure_alive() == [0]
        assert group.pids[0] == starting


PARENT = """
import sys, time
from pathlib import Path
from moorage_state.server import ServerGroup
group = ServerGroup(2, Path(sys.argv[1]))
print(*group.pids, group.addresses[0], flush=True)
{then}
time.sleep(600)
"""


@pytest.mark.parametrize(
    "then",
    ["", "import os\nif os.fork() == 0:\n    time.sleep(3)\n    os._exit(0)"],
    ids=["alone", "with a forked child that keeps the pipe open"],
)
def test_servers_end_when_their_parent_is_killed(tmp_path, then):
    command = [sys.executable, "-c", PARENT.format(then=then), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=ENVIRONMENT) as parent:
        assert parent.stdout
        *pids, address = parent.stdout.readline().decode().split()
        assert all(is_running(int(pid)) for pid in pids)
        parent.kill()
        wait_until(lambda: not any(is_running(int(pid)) for pid in pids))
    assert not Path(address.removeprefix("unix:")).parent.exists()


EARLY = """
import os, signal
from moorage_state.server import process
waited = process._wait_for_end
def wait(*arguments):
    os.kill(os.getpid(), signal.SIGTERM)
    waited(*arguments)
process._wait_for_end = wait
process.main()
"""


def test_a_signal_before_anybody_waits_for_it_leaves_no_socket(tmp_path):
    """Threads of libraries do not block it: its default action would have ended the process."""
    path = tmp_path / "0.sock"
    command = [sys.executable, "-c", EARLY, "--dir", str(tmp_path / "d"), "--socket", str(path)]
    environment = {**ENVIRONMENT, process.TOKEN_VARIABLE: "secret"}
    ended = subprocess.run(command, capture_output=True, env=environment, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert not path.exists()


RENEWED = """
import sys
from pathlib import Path
from moorage_state.errors import UserError
from moorage_state.server import process
from moorage_state.server.tls import Certificates, TlsFiles
from moorage_state.stores.s3.mounted_keys import MountedKeys
def start(options):
    keys, certificates = MountedKeys.found(options.dir), Certificates(TlsFiles(*sys.argv[-2:]))
    keys.get_frozen_credentials()
    certificates.server()
    (options.dir / "AWS_ACCESS_KEY_ID").write_text("newer than that")
    Path(sys.argv[-2], "tls.crt").touch()
    keys.get_frozen_credentials()
    certificates.server()
    raise UserError("that is all")
process._start = start
sys.exit(process.main(sys.argv[1:-2]))
"""


def test_a_server_says_that_it_uses_new_keys_and_certificates(tmp_path):
    """People wait for that in its log before they take the old ones back."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        (tmp_path / name).write_text("old")
    files = mount(tmp_path / "tls")
    command = [sys.executable, "-c", RENEWED, "--dir", str(tmp_path), files.directory, files.name]
    ended = subprocess.run(
        command, capture_output=True, env=ENVIRONMENT, text=True, timeout=60, check=False
    )
    assert ended.returncode == 2
    assert f"state-server INFO keys of the store taken up: directory={tmp_path}\n" in ended.stderr
    assert f"state-server INFO certificate taken up: directory={files.directory}" in ended.stderr


def test_a_server_that_cannot_start_says_so(tmp_path, capfd):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(Retryable, match="did not start"):
        ServerGroup(1, tmp_path / "file" / "local")
    assert "state server cannot start" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--socket", "/tmp/" + "x" * 100], "too long"),
        ([], "nowhere to listen"),
        (["--tcp", "here"], "not an address"),
        (["--tcp", "127.0.0.1:0", "--options", '{"tuned": {"compaction": "magic"}}'], "compaction"),
        (["--tcp", "127.0.0.1:0", "--options", '{"colour": 1}'], "not known: options=['colour']"),
        (["--tcp", "127.0.0.1:0", "--backend", "no_such:Backend"], "there is no module no_such"),
        (["--tcp", "127.0.0.1:0", "--backend", "json:JSONDecoder"], "not a state backend"),
    ],
)
def test_wrong_arguments_are_explained(tmp_path, capsys, monkeypatch, arguments, told):
    monkeypatch.setenv("MOORAGE_STATE_TOKEN", "secret")
    monkeypatch.setattr(process, "end_signals", lambda: None)
    assert main(["--dir", str(tmp_path), *arguments]) == 2
    assert told in capsys.readouterr().err


def test_a_server_without_a_token_does_not_start(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("MOORAGE_STATE_TOKEN", raising=False)
    monkeypatch.setattr(process, "end_signals", lambda: None)
    assert main(["--dir", str(tmp_path), "--tcp", "127.0.0.1:0"]) == 2
    assert "no token" in capsys.readouterr().err


def test_a_sidecar_serves_tcp_with_a_token_from_a_file(tmp_path):
    (tmp_path / "token").write_text("secret\n")
    command = [sys.executable, "-m", "moorage_state.server", "--dir", str(tmp_path / "d")]
    command += ["--tcp", "127.0.0.1:0", "--token-file", str(tmp_path / "token")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=ENVIRONMENT) as server:
        assert server.stdout
        _, address = server.stdout.readline().decode().split()
        with StateClient.connect(address, "secret") as client:
            assert client.ping() == server.pid
        server.terminate()
        assert server.wait(10) == 0


def test_the_group_serves_tcp_when_asked(tmp_path, small):
    with ServerGroup(1, tmp_path, backend=small, tcp_host="127.0.0.1") as group:
        (address,) = group.tcp_addresses
        with StateClient.connect(address, group.token) as client:
            assert client.ping() == group.pids[0]


def test_a_wrong_token_is_refused(servers):
    with pytest.raises(UserError, match="token is wrong"):
        StateClient.connect(servers.addresses[0], "guess")


def test_another_protocol_version_is_refused(servers, monkeypatch):
    monkeypatch.setattr(
        Connection,
        "send_hello",
        lambda connection, *_: connection._send(b"\x92\x63\xc4\x01x", b""),
    )
    with pytest.raises(UserError, match="client=99"):
        StateClient.connect(servers.addresses[0], servers.token)


def test_a_peer_that_is_no_state_server_is_recognised(tmp_path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        greeter = threading.Thread(
            target=lambda: listener.accept()[0].sendall(b"220 mail.example.org ESMTP ready for you")
        )
        greeter.start()
        with pytest.raises(UserError, match="not a state server"):
            StateClient.connect(f"unix:{tmp_path / 's'}", "secret")
        greeter.join()


@pytest.mark.parametrize(
    ("wanted", "kind"), [({}, UserError), ({"server": "x"}, AnotherServer)], ids=["any", "known"]
)
def test_a_peer_that_does_not_know_the_token_is_not_trusted(tmp_path, wanted, kind):
    """It says what a server says, and takes whatever it is told."""

    def pretend(listener):
        connection = Connection(listener.accept()[0])
        connection.socket.sendall(b"MOORSTA" + bytes([PROTOCOL_VERSION]) + bytes(32) + b"\x01x")
        connection.receive_hello()
        connection.send_result(bytes(32))
        connection.close()

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        pretender = threading.Thread(target=pretend, args=(listener,))
        pretender.start()
        with pytest.raises(kind, match="does not know the token"):
            StateClient.connect(f"unix:{tmp_path / 's'}", "secret", **wanted)
        pretender.join()


@pytest.mark.parametrize("address", ["", "unix:", "tcp:host", "tcp::1", "http://x", "tcp:a:b"])
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(UserError, match="not the address"):
        StateClient.connect(address, "secret")


def test_nobody_at_an_address_is_retryable(tmp_path):
    with pytest.raises(Retryable, match="does not answer"):
        StateClient.connect(f"unix:{tmp_path / 'nobody'}", "secret")


@pytest.mark.parametrize(
    "junk", [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, b""], ids=["http", "huge", "none"]
)
def test_junk_ends_its_connection_and_nothing_else(servers, junk):
    path = servers.addresses[0].removeprefix("unix:")
    with socket.socket(socket.AF_UNIX) as connected:
        connected.settimeout(20)
        connected.connect(path)
        connected.sendall(junk)
        connected.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):
            while connected.recv(4096):
                pass
    with servers.connect(0) as client:
        assert client.ping() == servers.pids[0]


def test_a_request_with_wrong_arguments_is_answered_with_a_bug(servers):
    with servers.connect(0) as client:
        wrong: Any = "not a number"
        with pytest.raises(Exception, match="malformed request"):
            client.range(Lease("uid", wrong, "f1r0")).commit(1, "digest")
        assert client.ping() == servers.pids[0]


def test_a_call_to_a_dead_server_is_retryable_and_so_are_all_later_ones(group):
    with group.connect(0) as client:
        os.kill(group.pids[0], signal.SIGKILL)
        wait_until(lambda: not is_running(group.pids[0]))
        for expected in ("does not answer", "is gone"):
            with pytest.raises(Retryable, match=expected):
                client.ping()


def test_a_server_that_does_not_answer_in_time_is_retryable(group):
    with group.connect(0, timeout=0.2) as client:
        os.kill(group.pids[0], signal.SIGSTOP)
        wait_until(lambda: state_of(group.pids[0]) == "T")
        try:
            with pytest.raises(Retryable, match="does not answer"):
                client.ping()
        finally:
            os.kill(group.pids[0], signal.SIGCONT)


def test_frames_larger_than_every_buffer_are_staged_without_waiting(servers, drive, key):
    with servers.connect(1) as client:
        op = drive(client)
        op.open()
        value = random.Random(1).randbytes(100_000)
        for seq in range(40):
            keys = [key(seq, n) for n in range(10)]
            client.range(op.lease).stage(1, "a", encode_frame([], keys, [value] * 10), seq)
        prepared = client.range(op.lease).prepare(1, "a", "", 40)
        assert (prepared.operations, prepared.bytes > 40_000_000) == (400, True)
        op.commit(prepared)
        assert len(op.read()) == 400
        client.release_range(op.lease)


def test_trap_9_ranges_stay_open_between_connections(servers, drive, key):
    with servers.connect(1) as client:
        op = drive(client)
        op.open()
        op.epoch({key(1, 1): b"x"})
    with servers.connect(1) as client:
        op.api = client
        assert op.read() == {key(1, 1): b"x"}
        client.release_range(op.lease)


def test_two_tasks_may_share_one_client(servers, drive, key):
    with servers.connect(0) as client:
        op = drive(client)
        op.open()
        writes = {key(g, 1): bytes([g]) for g in range(64)}
        op.epoch(writes)
        found: list[dict] = []
        threads = [
            threading.Thread(target=lambda: found.extend(op.read() for _ in range(20)))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [writes] * 80
        client.release_range(op.lease)


@pytest.fixture
def file_limit(group):
    """Sets the largest file that the server may write: a full disk for those who are not root."""

    def limit(size):
        resource.prlimit(group.pids[0], resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    return limit


def test_a_full_disk_while_staging_costs_only_the_attempt(group, drive, key, file_limit):
    with group.connect(0) as client:
        op = drive(client)
        op.open()
        op.epoch({key(1, 1): b"before"})
        file_limit(64_000)
        with pytest.raises(LocalDiskError, match="delta"):
            op.prepare({key(1, 2): bytes(100_000)})
        assert op.read() == {key(1, 1): b"before"}
        file_limit(resource.RLIM_INFINITY)
        op.epoch({key(1, 2): bytes(100_000)})
        assert len(op.read()) == 2


@only_rocksdb
@pytest.mark.scenario(27)
def test_a_full_disk_under_the_database_loses_nothing_committed(group, drive, key, file_limit):
    with group.connect(0) as client:
        op = drive(client)
        op.open()
        rng = random.Random(3)
        for _ in range(3):
            op.epoch({key(rng.randrange(64), n): rng.randbytes(500) for n in range(300)})
        before = op.read()
        file_limit(10_000)
        with pytest.raises(LocalDiskError):
            client.range(op.lease).snapshot(1, op.version)
        with pytest.raises(LocalDiskError):
            op.read()
        assert next(s for s in client.stats() if s.uid == op.spec.uid).error
        file_limit(resource.RLIM_INFINITY)
        op.open()
        assert op.read() == before
        op.checkpoint(2)


def test_trap_6_sigkill_at_any_moment_loses_nothing_committed(group, drive, key):
    rng = random.Random(11)
    model: dict[bytes, bytes | None] = {}
    with group.connect(0) as client:
        op = drive(client)
        op.open()
        client.close()
    for life in range(6):
        with group.connect(0) as client:
            op.api = client
            op.open()
            assert op.read() == {k: v for k, v in model.items() if v is not None}
            killer = threading.Timer(rng.uniform(0.0, 0.3), os.kill, (group.pids[0], 9))
            killer.start()
            live_until_killed(op, rng, model, key, life)
            killer.join()
        assert group.ensure_alive() == [0]
    with group.connect(0) as client:
        op.api = client
        op.open()
        assert op.read() == {k: v for k, v in model.items() if v is not None}


def live_until_killed(op, rng, model, key, life):
    """Epochs and checkpoints; the driver has decided a commit before it tells the server."""
    try:
        while True:
            writes = {
                key(rng.randrange(64), rng.randrange(50)): rng.choice([None, rng.randbytes(200)])
                for _ in range(500)
            }
            prepared = op.prepare(writes, attempt=f"a{life}")
            model.update(writes)
            op.commit_decided(prepared)
            if op.version.epoch % 5 == 0:
                op.checkpoint(op.version.epoch, op.base.handles[0].files if op.base else [])
    except Retryable:
        return


def test_a_server_starts_without_numpy_and_arrow():
    """They cost more than all the rest of its start, and few servers ever need them."""
    code = (
        "import sys, moorage_state.server.__main__; print({'numpy', 'pyarrow'} & set(sys.modules))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "set()\n"
