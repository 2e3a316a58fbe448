"""The endpoint is a doorbell: it lets in who may, takes what is asked, and never hangs."""

import base64
import contextlib
import http.client
import json
import socket
import ssl
import string
import threading
import time
from concurrent.futures import Future
from typing import Any

import pyspark
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from moorage_testing.jobs import wait_until
from moorage_testing.tls import NAME, authority, mount

from moorage.cluster.endpoint import MAX_BODY_BYTES
from moorage.driver.lookup_requests import MOST_BYTES, LookupRequest
from moorage.driver.lookups import JobNotRunning, StateMoving
from moorage.driver.requests import (
    CheckpointRequest,
    RescaleRequest,
    RestartNeeded,
    SavepointRequest,
    Stopped,
    StopRequest,
    TooManyRequests,
)
from moorage.driver.views import CheckpointView, RestoredView, SavepointView
from moorage.engine.kv_states import UnknownKvState
from moorage.queryable import QueryableStateClient
from moorage_api.driver import DriverState, RequestView
from moorage_state.errors import Bug, Retryable, StoreUnavailable, UserError

from .conftest import AT, TOKEN, play

VIEW = CheckpointView(7, 41, AT, 1234, 200, 0.5, 3)
SAVEPOINT = SavepointView("before", "s3://sp/before", 8, 41, 99, 1.5, "sha256:abc", 128, AT)
ORDERS: dict[str, dict[str, Any]] = {
    "/checkpoints": {},
    "/savepoints": {"name": "before"},
    "/stop": {},
    "/rescale": {"executors": 3},
    "/promote": {},
}


def test_health_needs_no_token_and_says_nothing(played):
    assert played.call("GET", "/healthz", token=None) == (200, b"ok\n")


def test_a_driver_that_was_told_to_end_is_ready_and_says_so(played):
    played.requests.refuse("the driver is ending: signal=SIGTERM")
    assert played.call("GET", "/healthz", token=None) == (200, b"ends\n")


def test_a_driver_that_stands_by_is_not_ready_and_leaves_metrics_to_the_one_that_leads(played):
    played.say(phase="running", standby=True, epochs=1, epoch_rows=5)
    assert played.call("GET", "/healthz", token=None) == (503, b"stands by\n")
    assert played.call("GET", "/metrics") == (200, b"")
    state = played.state()
    assert (state.standby, state.phase, state.running_since) == (True, "running", None)
    played.say(phase="starting")
    assert played.state().running_since is None
    played.say(phase="running", epochs=1)
    assert played.state().running_since is not None
    assert played.call("GET", "/healthz", token=None) == (200, b"ok\n")
    assert b"moorage_epoch_duration_seconds_count" in played.call("GET", "/metrics")[1]


@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN[:-1], f"{TOKEN}x", f" {TOKEN}x"])
@pytest.mark.parametrize(
    "path", ["/", "/state", "/metrics", "/checkpoints", "/requests/a", "/nowhere"]
)
def test_everything_else_needs_the_token(played, path, token):
    status, answer = played.call("GET", path, token=token)
    assert (status, answer["error"]["code"]) == (401, "unauthorized")


@pytest.fixture
def read_only(tmp_path):
    """An endpoint with a token that only reads, and the file that it lies in."""
    file = tmp_path / "scrape"
    file.write_text(f"{READER}\n")
    with play(scrape=file) as made:
        yield made, file


READER = "a-token-that-only-reads"


def test_a_token_that_comes_changes_or_goes_is_heeded_at_once(read_only):
    endpoint, file = read_only
    assert endpoint.call("GET", "/state", token=READER)[0] == 200
    other = file.with_name("other")
    for text, opens in ((READER[::-1], 200), (READER, 401), (READER[::-1], 200)):
        # As the kubelet does: another file takes the name.
        other.write_text(text)
        other.replace(file)
        assert endpoint.call("GET", "/state", token=READER[::-1])[0] == opens
    file.unlink()
    assert endpoint.call("GET", "/state", token=READER[::-1])[0] == 401
    file.write_bytes(b"\xff\xfe")
    assert endpoint.call("GET", "/state", token=READER[::-1])[0] == 401


def test_a_browser_shows_the_token_as_a_password_and_only_to_read(read_only):
    endpoint, _ = read_only
    for token in (READER, TOKEN):
        word = base64.b64encode(f"anybody:{token}".encode()).decode()
        status, html = endpoint.call("GET", "/", token=None, Authorization=f"Basic {word}")
        assert (status, b"No epoch has been committed yet." in html) == (200, True)
        order = endpoint.call("POST", "/stop", {}, token=None, Authorization=f"Basic {word}")
        assert order[0] == 401


@pytest.mark.parametrize("word", ["", "====", "bm8gY29sb24=", "eDp3cm9uZw=="])
def test_other_passwords_open_nothing_and_a_browser_is_asked_again(read_only, word):
    endpoint, _ = read_only
    with endpoint.keep() as connection:
        connection.request("GET", "/", headers={"Authorization": f"Basic {word}"})
        answer = connection.getresponse()
        assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, 'Basic realm="moorage"')


def test_the_page_of_a_run_keeps_to_itself_what_a_browser_may_do(played):
    with played.keep() as connection:
        connection.request("GET", "/", headers={"Authorization": f"Bearer {TOKEN}"})
        policy = connection.getresponse().headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe-inline" not in policy


def answer_to(endpoint, path, **headers):
    with endpoint.keep() as connection:
        connection.request("GET", path, headers=headers)
        found = connection.getresponse()
        return found, found.read()


BROWSER = {"Authorization": f"Bearer {TOKEN}", "Accept": "text/html,*/*;q=0.8"}


@pytest.mark.parametrize("path", ["/", "/team/clicks", "/team/clicks/", "/state/of/the/team"])
def test_the_page_is_found_below_the_path_of_an_ingress(played, path):
    answer, html = answer_to(played, path, **BROWSER)
    if path.startswith("/state/"):
        # Of what is the endpoint's own nothing is guessed.
        assert answer.status != 200
        return
    assert (answer.status, b"No epoch has been committed yet." in html) == (200, True)
    asked, _ = answer_to(played, path, Accept=BROWSER["Accept"])
    assert (asked.status, asked.headers["WWW-Authenticate"]) == (401, 'Basic realm="moorage"')


@pytest.mark.parametrize("path", ["/report.html", "/team/clicks/report.html"])
def test_the_page_is_kept_as_a_file_by_who_has_the_token(played, path):
    answer, html = answer_to(played, path, **BROWSER)
    assert (answer.status, b"No epoch has been committed yet." in html) == (200, True)
    assert answer.headers["Content-Disposition"].startswith("attachment")
    assert answer_to(played, path)[0].status == 401


def test_what_is_no_page_is_none_below_a_path_either(played):
    assert played.call("GET", "/team/clicks")[1]["error"]["code"] == "not_found"
    answer, body = answer_to(played, "/state", **BROWSER)
    assert (answer.status, DriverState.model_validate_json(body).job_uid) == (200, "uid-1")
    assert played.call("POST", "/team/clicks/", {})[0] == 404


@pytest.mark.parametrize("path", ["/state", "/metrics", "/checkpoints"])
def test_the_token_for_scraping_reads(read_only, path):
    assert read_only[0].call("GET", path, token=READER)[0] == 200


@pytest.mark.parametrize("path", ORDERS)
def test_the_token_for_scraping_gives_no_orders(read_only, path):
    played, _ = read_only
    status, answer = played.call("POST", path, {"requestId": "a", **ORDERS[path]}, token=READER)
    assert (status, answer["error"]["code"]) == (403, "forbidden")
    assert played.requests.take() == []
    assert played.order(path, **ORDERS[path])[0] == 202


def test_the_token_for_scraping_may_change_and_come_late(read_only):
    played, file = read_only
    file.write_text(f"{READER}-2")
    assert played.call("GET", "/metrics", token=READER)[0] == 401
    assert played.call("GET", "/metrics", token=f"{READER}-2")[0] == 200
    for text in ("", "\n", "short"):
        file.write_text(text)
        assert played.call("GET", "/metrics", token=text.strip())[0] == 401
    file.unlink()
    assert played.call("GET", "/metrics", token=f"{READER}-2")[0] == 401
    assert played.call("GET", "/metrics")[0] == 200


@pytest.fixture
def secured(tmp_path):
    """A hasty endpoint behind TLS, and where its certificate lies."""
    with play(tls=mount(tmp_path / "tls"), seconds=1.0) as made:
        yield made, tmp_path / "tls"


def ask_by_tls(played, ca="ca", name=NAME):
    """Status of /state, and the certificate that was shown."""
    text, shown = read_by_tls(played, "/state", ca, name)
    return int(text.split()[1]), shown


def read_by_tls(played, path, ca="ca", name=NAME):
    """The answer as it comes, and the certificate that was shown."""
    context = ssl.create_default_context(cadata=authority(ca))
    with (
        played.connect() as plain,
        context.wrap_socket(plain, server_hostname=name) as connected,
    ):
        shown = connected.getpeercert(binary_form=True)
        text = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
        connected.sendall(f"{text}Connection: close\r\n\r\n".encode())
        return b"".join(iter(lambda: connected.recv(65536), b"")).decode(), shown


def test_by_tls_the_endpoint_answers_who_believes_its_certificate(secured):
    assert ask_by_tls(secured[0])[0] == 200
    with pytest.raises(ssl.SSLCertVerificationError, match="local issuer"):
        ask_by_tls(secured[0], ca="other-ca")
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        ask_by_tls(secured[0], name="orders-driver.team.svc")


def test_with_tls_nothing_is_said_in_the_clear(secured):
    with pytest.raises((http.client.HTTPException, OSError)):
        secured[0].call("GET", "/healthz", token=None)


def test_the_endpoint_takes_up_a_renewed_certificate(secured):
    played, directory = secured
    _, before = ask_by_tls(played)
    mount(directory, "renewed")
    status, after = ask_by_tls(played)
    assert status == 200
    assert after != before


def test_who_scrapes_hears_that_a_new_certificate_is_not_used_and_until_when_the_old_one_is(
    secured,
):
    played, directory = secured
    ask_by_tls(played)
    for name, refused in (("expired", "1.0"), ("renewed", "0.0")):
        mount(directory, name)
        shown = read_by_tls(played, "/metrics")[0].splitlines()
        of = {line.partition("{")[0]: line for line in shown if line.startswith("moorage_")}
        assert of["moorage_secret_refused"].endswith(f'secret="certificate"}} {refused}')
        assert of["moorage_certificate_expiry_timestamp_seconds"].endswith("} 4.7335104e+09")


def test_a_tls_handshake_byte_by_byte_has_the_one_deadline_and_keeps_nobody_out(secured):
    played, _ = secured
    with contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(played.connect()) for _ in range(100)]
        assert ask_by_tls(played)[0] == 200
        began = time.monotonic()
        with contextlib.suppress(OSError):
            crowd[-1].sendall(b"\x16\x03\x01\x02\x00")
            while time.monotonic() - began < 10 and crowd[-1].recv(100):
                pass
        assert time.monotonic() - began < 5


def test_two_authorizations_are_none(played):
    with played.keep() as connection:
        connection.putrequest("GET", "/state")
        connection.putheader("Authorization", "Bearer wrong")
        connection.putheader("Authorization", f"Bearer {TOKEN}")
        connection.endheaders()
        assert connection.getresponse().status == 401


@pytest.mark.parametrize("path", ORDERS)
def test_what_is_asked_for_reaches_the_driver_once(played, path):
    first, second = (played.order(path, **ORDERS[path]) for _ in range(2))
    assert first == second
    assert first[0] == 202
    assert first[1]["state"] == "Pending"
    assert len(played.requests.take()) == 1


def test_requests_arrive_as_they_were_asked(played):
    played.order("/checkpoints", requestId="c")
    played.order("/savepoints", requestId="s", name="x", format="native")
    played.order("/stop", requestId="t", mode="Savepoint", name="y", release=True)
    played.order("/rescale", requestId="r", parallelism=4)
    one, two, three, four = played.requests.take()
    assert isinstance(one, CheckpointRequest)
    assert isinstance(two, SavepointRequest)
    assert (two.request_id, two.name, two.format, two.stop) == ("s", "x", "native", False)
    assert isinstance(three, StopRequest)
    assert (three.mode, three.release) == ("Savepoint", True)
    assert three.savepoint is not None
    assert (three.savepoint.request_id, three.savepoint.name) == ("t", "y")
    assert isinstance(four, RescaleRequest)
    assert (four.parallelism, four.executors) == (4, None)


def test_the_answer_can_be_fetched_again_when_it_was_lost(played):
    played.order("/checkpoints")
    (request,) = played.requests.take()
    request.running()
    assert played.call("GET", "/requests/a")[1]["state"] == "Running"
    request.answer(VIEW)
    for method, path, body in (
        ("GET", "/requests/a", None),
        ("POST", "/checkpoints", {"requestId": "a"}),
    ):
        status, answer = played.call(method, path, body)
        view = RequestView.model_validate(answer)
        assert (status, view.state) == (200, "Completed")
        assert view.checkpoint is not None
        assert view.checkpoint.path == "s3://state/clicks/chk-7"
        assert (view.checkpoint.size_bytes, view.checkpoint.uploaded_bytes) == (1234, 200)
    assert played.requests.take() == []


def test_a_savepoint_says_all_that_its_restore_needs(played):
    played.order("/savepoints", name="before")
    played.requests.take()[0].answer(SAVEPOINT)
    view = played.view()
    assert view.savepoint is not None
    assert view.savepoint.manifest_digest == "sha256:abc"
    assert (view.savepoint.max_parallelism, view.savepoint.checkpoint_id) == (128, 8)
    assert view.savepoint.spark_version == pyspark.__version__
    assert view.savepoint.completed_at == AT


def test_a_stop_says_with_what(played):
    played.say(last_checkpoint=VIEW, completed_checkpoints=1)
    played.order("/stop")
    played.requests.take()[0].answer(Stopped(VIEW, SAVEPOINT, released=True))
    view = played.view()
    assert view.savepoint is not None
    assert view.savepoint.name == "before"
    assert view.checkpoint is not None
    assert view.checkpoint.id == 7


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StoreUnavailable("the store is away"), "store_unavailable"),
        (RestartNeeded("no"), "restart_needed"),
    ],
)
def test_why_a_request_failed_has_a_stable_code(played, error, code):
    played.order("/rescale", executors=3)
    played.requests.take()[0].answer(error)
    status, answer = played.order("/rescale", executors=3)
    assert (status, answer["state"], answer["error"]["code"]) == (200, "Failed", code)


@pytest.mark.parametrize(
    ("path", "body"), [("/savepoints", {"name": "other"}), ("/checkpoints", {}), ("/stop", {})]
)
def test_an_id_is_of_one_request(played, path, body):
    played.order("/savepoints", name="before")
    status, answer = played.order(path, **body)
    assert (status, answer["error"]["code"]) == (409, "request_conflict")
    assert len(played.requests.take()) == 1


def test_a_driver_that_ends_takes_nothing_new_and_still_answers(played):
    played.order("/checkpoints")
    played.requests.refuse("the driver is ending")
    status, answer = played.order("/checkpoints", requestId="b")
    assert (status, answer["error"]["code"]) == (503, "driver_ending")
    assert played.order("/checkpoints")[0] == 202


def test_a_hundred_requests_are_remembered_and_unanswered_ones_never_forgotten(played):
    for number in range(100):
        assert played.order("/checkpoints", requestId=f"r{number}")[0] == 202
    assert played.order("/checkpoints", requestId="more")[0] == 429
    played.requests.get("r50").answer(VIEW)
    assert played.order("/checkpoints", requestId="more")[0] == 202
    assert played.call("GET", "/requests/r50")[0] == 404
    assert played.call("GET", "/requests/r0")[0] == 200
    assert len(played.board.state().requests) == 100


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/", 405),
        ("GET", "/state/", 404),
        ("GET", "/requests/none", 404),
        ("GET", "/requests/", 404),
        ("POST", "/requests/a", 405),
        ("POST", "/state", 405),
        ("GET", "/stop", 405),
        ("DELETE", "/checkpoints", 405),
        ("PUT", "/healthz", 405),
        ("HEAD", "/state", 405),
        ("OPTIONS", "/metrics", 405),
    ],
)
def test_paths_and_methods_that_are_not(played, method, path, status):
    assert played.call(method, path)[0] == status


@pytest.mark.parametrize(
    ("path", "body", "part"),
    [
        ("/checkpoints", b"", "body"),
        ("/checkpoints", b"{", "body"),
        ("/checkpoints", b"[]", "body"),
        ("/checkpoints", b"\xff\xfe", "body"),
        ("/checkpoints", b"[" * 9_000, "body"),
        ("/checkpoints", b"{}", "requestId"),
        ("/checkpoints", b'{"requestId": 7}', "requestId"),
        ("/checkpoints", b'{"requestId": "../x"}', "requestId"),
        ("/checkpoints", b'{"requestId": "a", "more": 1}', "more"),
        ("/savepoints", b'{"requestId": "a", "name": "../x"}', "name"),
        ("/savepoints", b'{"requestId": "a", "name": "x", "format": "xml"}', "format"),
        ("/stop", b'{"requestId": "a", "mode": "Savepoint"}', "name"),
        ("/stop", b'{"requestId": "a", "name": "x"}', "name"),
        ("/stop", b'{"requestId": "a", "release": "yes"}', "release"),
        ("/rescale", b'{"requestId": "a"}', "parallelism"),
        ("/rescale", b'{"requestId": "a", "executors": 0}', "executors"),
        ("/rescale", b'{"requestId": "a", "executors": 1.5}', "executors"),
    ],
)
def test_a_wrong_body_is_named_by_its_field_and_does_nothing(played, path, body, part):
    status, answer = played.call("POST", path, body)
    assert (status, answer["error"]["code"]) == (400, "bad_request")
    assert f"{part}: " in answer["error"]["message"]
    assert played.requests.take() == []


def test_a_body_that_is_too_long_is_not_read(played):
    body = b'{"requestId": "' + b"a" * MAX_BODY_BYTES + b'"}'
    assert played.call("POST", "/checkpoints", body)[0] == 413
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with played.keep() as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            pieces = (b"x" * 1000 for _ in range(5_000))
            connection.request("POST", "/stop", pieces, headers, encode_chunked=True)
        with contextlib.suppress(ConnectionResetError):
            assert connection.getresponse().status == 413
    assert played.requests.take() == []


def test_the_state_is_that_of_the_contract_without_secrets(played):
    played.say(
        phase="running",
        message="could not reach s3://user:password@host with very-secret-key",
        lineage="lin",
        fence=4,
        epoch=41,
        rows_total=10,
        parallelism=2,
        max_parallelism=128,
        restored_from="chk-6",
        restored=RestoredView("chk-6", 6, AT, own=True),
        last_checkpoint=VIEW,
        storage_error=f"asked with {TOKEN}",
    )
    status, answer = played.call("GET", "/state")
    assert status == 200
    text = json.dumps(answer)
    assert not [s for s in ("password", "very-secret-key", TOKEN) if s in text]
    state = DriverState.model_validate(answer)
    assert (state.attempt, state.job_uid, state.fence) == (3, "uid-1", 4)
    assert state.restored_from is not None
    assert state.restored_from.path == "s3://state/clicks/chk-6"
    assert state.running_since == AT
    assert state.last_checkpoint is not None
    assert state.last_checkpoint.id == 7


def test_who_is_slow_to_ask_is_hung_up_on_and_others_are_served(hasty):
    slow = []
    for start in (b"", b"GET /state HT", b"POST /stop HTTP/1.1\r\nContent-Length: 9\r\n\r\n{"):
        peer = hasty.connect()
        peer.sendall(start)
        slow.append(peer)
    keep = hasty.keep()
    keep.ask("/healthz")
    stop = threading.Event()

    def drip() -> None:
        while not stop.wait(0.05):
            with contextlib.suppress(OSError):
                slow[1].sendall(b"x")

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        for peer in slow:
            with contextlib.suppress(ConnectionResetError):
                while peer.recv(1000):
                    pass
        assert hasty.call("GET", "/healthz", token=None)[0] == 200
        with contextlib.suppress(ConnectionResetError):
            assert keep.sock.recv(10) == b""  # the idle one was closed, too
    finally:
        stop.set()
        thread.join()
        keep.close()
        for peer in slow:
            peer.close()


def test_a_connection_that_asks_in_time_is_kept(hasty):
    with hasty.keep() as keep:
        keep.connect()
        sock, began = keep.sock, time.monotonic()
        while time.monotonic() - began < 1.5:
            assert keep.ask("/metrics", TOKEN)
        assert keep.sock is sock


@pytest.mark.parametrize("path", ["/healthz", "/state"])
def test_a_stranger_has_one_deadline_however_often_it_asks(hasty, path):
    with hasty.keep() as keep, contextlib.suppress(OSError, http.client.HTTPException):
        keep.connect()
        keep.auto_open = 0
        began = time.monotonic()
        while time.monotonic() - began < 10:
            keep.ask(path)
    assert 0.4 < time.monotonic() - began < 5


def test_who_has_shown_the_token_is_not_put_out_by_a_crowd(played):
    with played.keep() as keep, contextlib.ExitStack() as stack:
        keep.ask("/metrics", TOKEN)
        sock = keep.sock
        for _ in range(150):
            stack.enter_context(played.connect())
        assert played.call("GET", "/state")[0] == 200  # so all that came before are in
        assert keep.ask("/metrics", TOKEN)
        assert keep.sock is sock


def test_many_connections_do_not_keep_others_out(played):
    idle = [played.connect() for _ in range(200)]
    assert played.call("GET", "/state")[0] == 200

    def closed() -> bool:
        count = 0
        for peer in idle:
            peer.setblocking(False)
            try:
                count += peer.recv(1) == b""
            except BlockingIOError:
                continue
            except OSError:
                count += 1
        return count >= 130

    wait_until(closed, 10, "the slowest connections to be closed")
    for peer in idle:
        peer.close()


def test_a_port_that_is_taken_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UserError, match=r"port=\d+ error=.*in use"):
            play(port=taken.getsockname()[1])


# -- whatever is sent ---------------------------------------------------------------------------

PATHS = st.one_of(
    st.sampled_from([*ORDERS, "/state", "/metrics", "/requests/a", "/healthz", "*", "//", "/%00"]),
    st.text(string.printable, max_size=40).map(lambda s: f"/{s}"),
)
NAMES = [
    "Authorization",
    "Content-Length",
    "Transfer-Encoding",
    "Expect",
    "Upgrade",
    "Connection",
    "Content-Encoding",
    "Content-Type",
    "Host",
]
VALUES = [
    "Bearer wrong",
    *[
        "Bearer",
        "chunked",
        "100-continue",
        "websocket",
        "upgrade",
        "gzip",
        "-1",
        "5",
        "99999999999999999999",
        "keep-alive",
    ],
]
HEADERS = st.lists(
    st.tuples(
        st.one_of(st.sampled_from(NAMES), st.text(string.printable, max_size=20)),
        st.one_of(st.sampled_from(VALUES), st.text(max_size=60)),
    ),
    max_size=8,
)
RAW = st.builds(
    lambda method, path, version, headers, body, cut: (
        (
            f"{method} {path} {version}\r\n"
            + "".join(f"{name}: {value}\r\n" for name, value in headers)
            + "\r\n"
        ).encode("utf-8", errors="surrogateescape")
        + body
    )[: None if cut > 400 else cut],
    st.one_of(
        st.sampled_from(["GET", "POST", "PUT", "HEAD", "CONNECT", "TRACE", "PRI", "get"]),
        st.text(max_size=12),
    ),
    PATHS,
    st.sampled_from(["HTTP/1.1", "HTTP/1.0", "HTTP/2", "HTTP/9.9", "", "FTP/1.1"]),
    HEADERS,
    st.one_of(st.binary(max_size=300), st.just(b"x" * 70_000), st.just(b"5\r\nhello\r\n0\r\n\r\n")),
    st.integers(0, 500),
)


@pytest.fixture(scope="module")
def target():
    with play(seconds=1.0) as made:
        yield made


@settings(
    max_examples=250,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(raw=st.one_of(RAW, st.binary(max_size=2000)))
def test_nothing_sent_without_the_token_changes_or_breaks_anything(target, raw):
    answer = b""
    with target.connect() as peer:
        with contextlib.suppress(OSError):
            peer.sendall(raw)
            peer.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            while piece := peer.recv(65536):
                answer += piece
    for line in answer.split(b"\r\n"):
        if line.startswith(b"HTTP/1."):
            assert line.split()[1] in {b"200", b"400", b"401"}, (raw, answer)
    if b"200" in answer[:20]:
        assert answer.endswith(b"ok\n")
    assert target.requests.latest() == []


@settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "PATCH"]),
    path=st.one_of(
        st.sampled_from([*ORDERS, "/state", "/checkpoints", "/metrics", "/healthz"]),
        st.text(string.ascii_letters + "/%._-?&#", max_size=30).map(lambda s: f"/{s}"),
    ),
    body=st.one_of(
        st.binary(max_size=200),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
            lambda inner: (
                st.lists(inner, max_size=4)
                | st.dictionaries(
                    st.one_of(
                        st.sampled_from(["requestId", "name", "mode", "executors", "format"]),
                        st.text(max_size=9),
                    ),
                    inner,
                    max_size=5,
                )
            ),
            max_leaves=12,
        ).map(lambda value: json.dumps(value).encode()),
    ),
)
def test_whatever_is_sent_with_the_token_gets_an_answer(target, method, path, body):
    status, _ = target.call(method, path, body)
    assert status < 500
    for request in target.requests.latest():
        request.answer(VIEW)


class Answers:
    """Look-ups that are answered as the test says."""

    def __init__(self, result: Any = None) -> None:
        self.result = result
        self.asked: list[LookupRequest] = []

    def submit(self, request: LookupRequest) -> "Future[bytes]":
        self.asked.append(request)
        future: Future[bytes] = Future()
        if isinstance(self.result, BaseException):
            future.set_exception(self.result)
        else:
            future.set_result(b'{"results":[]}')
        return future


@pytest.fixture
def asked(tmp_path):
    """An endpoint whose look-ups are answered, with a token that only reads."""
    file = tmp_path / "scrape"
    file.write_text(READER)
    answers = Answers()
    with play(scrape=file, lookups=answers) as made:
        yield made, answers


def test_state_is_looked_up_by_the_path_and_the_query(asked):
    played, answers = asked
    path = "/state/counts?key=a%2Fb&key=%22x%22&mapKey=7&limit=3"
    assert played.call("GET", path) == (200, {"results": []})
    assert answers.asked == [LookupRequest("counts", ["a/b", '"x"'], True, "7", limit=3)]


def test_state_is_looked_up_below_the_path_of_an_ingress_by_the_page(asked):
    played, answers = asked
    path = "/team/state/clicks/state/counts?key=a"
    assert played.call("GET", path) == (200, {"results": []})
    assert answers.asked == [LookupRequest("counts", ["a"], True)]
    assert played.call("GET", path, token=None)[0] == 401
    # Orders, and keys by the hundred, are for who speaks to the driver itself.
    assert played.call("POST", path, {"keys": []})[0] == 404


@pytest.mark.parametrize("token", [TOKEN, READER])
def test_many_keys_are_posted_by_who_may_only_read_too(asked, token):
    played, answers = asked
    body = {"keys": [["a", n] for n in range(1000)]}
    assert played.call("POST", "/state/counts", body, token=token)[0] == 200
    assert answers.asked == [LookupRequest("counts", body["keys"])]


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("token", [None, "wrong-token-of-many-chars"])
def test_a_look_up_needs_a_token(asked, method, token):
    played, answers = asked
    status, answer = played.call(method, "/state/counts?key=a", b"{}", token=token)
    assert (status, answer["error"]["code"]) == (401, "unauthorized")
    assert not answers.asked


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (UnknownKvState("none"), 404, "unknown_state"),
        (UserError("key is not of its type"), 400, "user_error"),
        (JobNotRunning("not yet"), 503, "job_not_running"),
        (StateMoving("a rewind"), 503, "state_moving"),
        (TooManyRequests("full"), 429, "too_many_requests"),
        (Bug("no"), 500, "bug"),
    ],
)
def test_a_look_up_without_an_answer_says_why(asked, error, status, code):
    played, answers = asked
    answers.result = error
    found, answer = played.call("GET", "/state/counts?key=a")
    assert (found, answer["error"]) == (status, {"code": code, "message": str(error)})


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/state/counts", None, 400),
        ("GET", "/state/counts?key=a&key2=b", None, 400),
        ("POST", "/state/counts", b"[]", 400),
        ("POST", "/state/counts", b'{"keys": []}', 400),
        ("POST", "/state/counts", b" " * (MOST_BYTES + 1), 413),
        ("DELETE", "/state/counts", None, 405),
    ],
)
def test_look_ups_that_are_written_wrongly_are_refused(asked, method, path, body, status):
    played, answers = asked
    assert played.call(method, path, body)[0] == status
    assert not answers.asked


def test_the_client_asks_again_while_the_state_moves_and_no_longer(asked):
    played, answers = asked
    answers.result = StateMoving("a rewind")
    now = [0.0]
    client = QueryableStateClient(
        f"http://127.0.0.1:{played.endpoint.port}",
        READER,
        timeout=2.0,
        clock=lambda: now[0],
        pause=lambda seconds: now.__setitem__(0, now[0] + seconds),
    )
    with client, pytest.raises(Retryable, match="a rewind"):
        client.get("counts", "a")
    assert len(answers.asked) == 8
    answers.result = UserError("key is not of its type")
    with client, pytest.raises(UserError, match="key is not of its type"):
        client.get("counts", "a")
    assert len(answers.asked) == 9


def test_the_client_says_what_is_wrong_with_the_token_and_the_address(asked):
    port = asked[0].endpoint.port
    with (
        QueryableStateClient(f"http://127.0.0.1:{port}", "wrong") as client,
        pytest.raises(UserError, match="a bearer token is needed"),
    ):
        client.get("counts", "a")
    with pytest.raises(UserError, match="not the address of a driver's endpoint"):
        QueryableStateClient("clicks", "x")
    with (
        QueryableStateClient("http://127.0.0.1:1", "x", timeout=0.1) as client,
        pytest.raises(Retryable, match="does not answer"),
    ):
        client.get("counts", "a")


def test_the_client_believes_a_certificate_by_its_name(tmp_path):
    tls = mount(tmp_path / "tls")
    with play(tls=tls, lookups=Answers()) as played:
        address = f"https://127.0.0.1:{played.endpoint.port}"
        ca = tmp_path / "tls" / "ca.crt"
        with QueryableStateClient(address, TOKEN, ca_file=ca, server_name=NAME) as client:
            assert client.look_up(LookupRequest("counts", ["a"])) == {"results": []}
        for trust in ({"ca_file": ca}, {"server_name": NAME}):
            with (
                QueryableStateClient(address, TOKEN, timeout=5, **trust) as client,
                pytest.raises(UserError, match="certificate is not believed"),
            ):
                client.get("counts", "a")
