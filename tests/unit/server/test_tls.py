"""TLS between pods: who is believed, how a renewed certificate is taken up, and what is said."""

import contextlib
import os
import socket
import ssl
import time
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from moorage_testing.jobs import wait_until
from moorage_testing.tls import NAME, mount, pem

from moorage_state.errors import ServerGone, UserError
from moorage_state.mounted_secrets import MountedSecret, mounted_secrets
from moorage_state.server import ServerGroup
from moorage_state.server.client import StateClient
from moorage_state.server.service import Service
from moorage_state.server.sidecar import main
from moorage_state.server.tls import BadCertificate, Certificates, TlsFiles, tls_files

TOKEN = "the token"  # noqa: S105


@pytest.fixture
def files(tmp_path):
    return mount(tmp_path / "tls")


@pytest.fixture
def serve(tmp_path):
    """A service behind TLS; returns where it is."""
    with contextlib.ExitStack() as stack:

        def start(certificate="clicks", **bounds):
            certificates = Certificates(mount(tmp_path / f"of-{certificate}", certificate))
            host = SimpleNamespace(ping=lambda: 7)
            service = Service(host, TOKEN, certificates=certificates, **bounds)
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            service.listen(listener)
            stack.callback(listener.shutdown, socket.SHUT_RDWR)
            return f"tcp:127.0.0.1:{listener.getsockname()[1]}"

        yield start


def ping(address, files):
    with StateClient.connect(address, TOKEN, tls=files) as client:
        return client.ping()


@pytest.mark.parametrize(
    ("certificate", "ca", "says"),
    [
        ("expired", "ca", "certificate has expired"),
        ("neighbour", "ca", "Hostname mismatch"),
        ("stranger", "ca", "unable to get local issuer certificate"),
        ("clicks", "other-ca", "unable to get local issuer certificate"),
    ],
)
def test_a_certificate_that_no_peer_would_believe_is_found_before_there_is_one(
    tmp_path, certificate, ca, says
):
    with pytest.raises(BadCertificate, match=says) as error:
        Certificates(mount(tmp_path / "tls", certificate, ca)).check()
    assert str(tmp_path) in str(error.value)
    assert NAME in str(error.value)


@pytest.mark.parametrize("missing", ["tls.crt", "tls.key", "ca.crt"])
def test_a_file_that_is_missing_is_told(files, tmp_path, missing):
    (tmp_path / "tls" / missing).unlink()
    with pytest.raises(BadCertificate, match="No such file"):
        Certificates(files).check()


def test_a_key_of_another_certificate_is_told(files, tmp_path):
    mount(tmp_path / "other", "renewed")
    (tmp_path / "other" / "tls.key").replace(tmp_path / "tls" / "tls.key")
    with pytest.raises(BadCertificate, match="MISMATCH"):
        Certificates(files).check()


def test_client_and_server_of_a_job_believe_each_other(serve, files):
    assert ping(serve(), files) == 7


def test_a_client_without_a_certificate_gets_nothing(serve, tmp_path):
    address = serve()
    with pytest.raises(ServerGone):
        StateClient.connect(address, TOKEN)
    context = ssl.create_default_context(cadata=(tmp_path / "of-clicks/ca.crt").read_text())
    host, port = address.removeprefix("tcp:").split(":")
    with (
        socket.create_connection((host, int(port))) as plain,
        pytest.raises(ssl.SSLError, match=r"(?i)certificate.required"),
        context.wrap_socket(plain, server_hostname=NAME) as connected,
    ):
        connected.recv(1)


def test_a_client_of_another_job_is_refused_though_it_has_the_token(serve, tmp_path, caplog):
    address = serve()
    theirs = mount(tmp_path / "theirs", "neighbour")
    context = ssl.create_default_context(cafile=f"{theirs.directory}/ca.crt")
    context.load_cert_chain(f"{theirs.directory}/tls.crt", f"{theirs.directory}/tls.key")
    host, port = address.removeprefix("tcp:").split(":")
    with (
        socket.create_connection((host, int(port))) as plain,
        context.wrap_socket(plain, server_hostname=NAME) as connected,
    ):
        assert connected.recv(1) == b""
    assert "certificate of a client is another's" in caplog.text
    assert "orders-driver.team.svc" in caplog.text


def test_a_server_of_another_job_is_refused_before_anything_is_said(tmp_path, files):
    host = SimpleNamespace(ping=lambda: 7)
    theirs = TlsFiles(mount(tmp_path / "theirs", "neighbour").directory, "orders-driver.team.svc")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        Service(host, TOKEN, certificates=Certificates(theirs)).listen(listener)
        with pytest.raises(ServerGone, match=r"Hostname mismatch.*clicks-driver"):
            ping(f"tcp:127.0.0.1:{listener.getsockname()[1]}", files)
        listener.shutdown(socket.SHUT_RDWR)


def test_a_server_in_the_clear_is_not_spoken_to(files):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        Service(SimpleNamespace(ping=lambda: 7), TOKEN).listen(listener)
        with pytest.raises(ServerGone, match="no connection by TLS"):
            ping(f"tcp:127.0.0.1:{listener.getsockname()[1]}", files)
        listener.shutdown(socket.SHUT_RDWR)


def serial_of(address, ca):
    """Of the certificate that the server shows."""
    context = ssl.create_default_context(cafile=ca)
    host, port = address.removeprefix("tcp:").split(":")
    with (
        socket.create_connection((host, int(port))) as plain,
        context.wrap_socket(plain, server_hostname=NAME) as connected,
    ):
        return (connected.getpeercert() or {})["serialNumber"]


def test_a_renewed_certificate_is_taken_up_without_a_restart(serve, files, tmp_path, caplog):
    address, ca = serve(), tmp_path / "of-clicks" / "ca.crt"
    before = serial_of(address, ca)
    mount(tmp_path / "of-clicks", "expired")
    assert serial_of(address, ca) == before  # what will not do is passed over
    assert "the one before is used" in caplog.text
    mount(tmp_path / "of-clicks", "renewed")
    assert serial_of(address, ca) != before
    assert ping(address, files) == 7


def test_a_certificate_that_will_do_in_a_moment_is_tried_again_as_it_lies_there(tmp_path, caplog):
    """As one whose time has not come by this node's clock: nothing of the files changes then."""
    certificates = Certificates(mount(tmp_path / "tls"))
    before = certificates.server()
    write_in_place(tmp_path / "tls", "expired")
    seen = [certificates.server() for _ in range(3)]
    assert seen == [before] * 3
    write_in_place(tmp_path / "tls", "renewed")
    assert certificates.server() is not before
    told = [one for one in caplog.records if "not taken up" in one.getMessage()]
    assert len(told) == 1


def test_it_is_said_until_when_a_certificate_is_good_and_that_another_was_refused(tmp_path):
    certificates = Certificates(mount(tmp_path / "tls"))
    certificates.server()
    good = MountedSecret(ends=datetime(2120, 1, 1, tzinfo=UTC).timestamp())
    assert mounted_secrets()["certificate"] == good
    mount(tmp_path / "tls", "expired")
    for _ in range(2):
        certificates.server()
        assert mounted_secrets()["certificate"] == replace(good, refused=True)
    mount(tmp_path / "tls", "renewed")
    certificates.server()
    assert mounted_secrets()["certificate"] == good


def write_in_place(directory, certificate):
    """Change what the files say, and nothing of what is looked at to see that they changed."""
    for suffix in ("crt", "key"):
        text, file = pem(f"{certificate}.{suffix}"), directory / f"tls.{suffix}"
        file.write_text(text.ljust(4096, "\n"), encoding="ascii")
        os.utime(file, ns=(1, 1))


def test_a_handshake_that_is_never_ended_has_the_one_deadline(serve):
    address = serve(seconds=0.4)
    host, port = address.removeprefix("tcp:").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as stranger:
        began = time.monotonic()
        stranger.sendall(b"\x16\x03\x01\x02\x00")  # a record that stays away
        with contextlib.suppress(ConnectionError):
            assert stranger.recv(1) == b""
        assert 0.2 < time.monotonic() - began < 5


def test_the_servers_of_a_pod_speak_tls_over_tcp_and_plainly_over_their_socket(tmp_path, files):
    with ServerGroup(1, tmp_path / "local", tcp_host="127.0.0.1", tls=files) as group:
        with group.connect(0) as near:
            assert near.ping() == group.pids[0]
        with StateClient.connect(group.tcp_addresses[0], group.token, tls=files) as far:
            assert far.ping() == group.pids[0]
        with pytest.raises(ServerGone):
            StateClient.connect(group.tcp_addresses[0], group.token)


def test_much_goes_through(tmp_path, files, drive, key):
    with (
        ServerGroup(1, tmp_path / "local", tcp_host="127.0.0.1", tls=files) as group,
        StateClient.connect(group.tcp_addresses[0], group.token, tls=files) as client,
    ):
        op = drive(client)
        op.open()
        values = {key(n % 64, n): bytes([n % 251]) * 1000 for n in range(5_000)}
        op.epoch(values)
        found = op.range.get_many(op.version, list(values))
        assert found == list(values.values())


def test_a_sidecar_with_an_expired_certificate_says_so_and_does_not_begin(tmp_path, capfd):
    tls = mount(tmp_path / "tls", "expired")
    (tmp_path / "token").write_text(TOKEN)
    command = ["--dir", str(tmp_path / "volume"), "--servers", "1", "--health-port", "0"]
    command += ["--token-file", str(tmp_path / "token"), "--tls-dir", tls.directory]
    assert main([*command, "--tls-name", tls.name]) == 2
    assert "certificate has expired" in capfd.readouterr().err


def test_options_that_go_together_are_asked_for_together():
    assert tls_files("", "") is None
    assert tls_files("/d", "n") == TlsFiles("/d", "n")
    for one in (("/d", ""), ("", "n")):
        with pytest.raises(UserError, match="go together"):
            tls_files(*one)


def test_strangers_at_a_tls_port_are_bounded_too(serve, files):
    address = serve(strangers=2, seconds=60)
    host, port = address.removeprefix("tcp:").split(":")
    with contextlib.ExitStack() as stack:
        crowd = [
            stack.enter_context(socket.create_connection((host, int(port)), timeout=10))
            for _ in range(10)
        ]
        assert ping(address, files) == 7
        wait_until(lambda: sum(map(is_closed, crowd)) >= 8)


def is_closed(stranger):
    stranger.setblocking(False)
    try:
        return stranger.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
