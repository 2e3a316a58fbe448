"""The client of drivers, against a server that does what drivers and worse things do."""

import asyncio
import dataclasses
import gzip
import json
import ssl
from typing import Any

import pytest
from aiohttp import web
from moorage_testing.tls import NAME, authority, mount

from moorage_api.driver import StopBody
from moorage_operator.endpoint import HttpDrivers, _context
from moorage_operator.ports import (
    DriverTarget,
    EndpointRefused,
    EndpointUnreachable,
    EndpointUntrusted,
)

OLDER = "older"
STATE = {"attempt": 1, "jobUid": "u", "phase": "running", "epoch": 5, "ofTheFuture": {}}


class Driver:
    """Answers as a test says."""

    def __init__(self):
        self.answer = lambda _: web.json_response(STATE)
        self.seen = []
        self.target = None
        self.runner: Any = None

    async def handle(self, request):
        self.seen.append(
            (request.method, request.path, dict(request.headers), await request.read())
        )
        answer = self.answer(request)
        return await answer if asyncio.iscoroutine(answer) else answer


@pytest.fixture
async def driver():
    driver = Driver()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", driver.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    driver.target = DriverTarget("127.0.0.1", runner.addresses[0][1], "s3cret")
    driver.runner = runner
    yield driver
    await runner.cleanup()


@pytest.fixture
async def client():
    client = HttpDrivers(timeout=60.0, connect=60.0)
    yield client
    await client.close()


@pytest.fixture
async def hasty():
    """A client whose time is soon over."""
    client = HttpDrivers(timeout=0.5)
    yield client
    await client.close()


async def test_a_state_is_read_leniently(client, driver):
    assert (await client.state(driver.target)).epoch == 5


async def test_the_token_is_in_the_header_and_nowhere_else(client, driver):
    await client.state(driver.target)
    method, path, headers, _ = driver.seen[0]
    assert (method, path, headers["Authorization"]) == ("GET", "/state", "Bearer s3cret")
    assert "s3cret" not in repr(driver.target)


async def test_no_connection_outlives_its_answer(client, driver):
    """Of thousands of drivers, each asked twice a minute, open files would be what runs out."""
    await client.state(driver.target)
    async with asyncio.timeout(2.0):
        while driver.runner.server.connections:  # noqa: ASYNC110  nobody tells when one is closed
            await asyncio.sleep(0.01)


def by_token(known):
    """Answers who shows this token."""
    refusal = {"error": {"code": "unauthorized", "message": "no"}}

    def answer(request):
        if request.headers["Authorization"] == f"Bearer {known}":
            return web.json_response(STATE)
        return web.json_response(refusal, status=401)

    return answer


async def test_an_older_runtime_is_shown_the_token_that_it_knows(client, driver):
    target = dataclasses.replace(driver.target, older_token=OLDER)
    driver.answer = by_token(OLDER)
    assert (await client.state(target)).epoch == 5
    assert [seen[2]["Authorization"] for seen in driver.seen] == [
        "Bearer s3cret",
        f"Bearer {OLDER}",
    ]
    driver.answer = by_token("neither")
    with pytest.raises(EndpointRefused, match="no"):
        await client.state(target)


async def test_a_driver_that_knows_its_token_sees_no_other(client, driver):
    driver.answer = by_token("s3cret")
    await client.state(dataclasses.replace(driver.target, older_token=OLDER))
    assert len(driver.seen) == 1


@pytest.fixture
async def secured(tmp_path):
    """Serves with a certificate; returns where, and whom to believe."""
    runners = []

    async def serve(certificate, ca="ca", name=NAME):
        app = web.Application()
        app.router.add_route("GET", "/{path:.*}", answer_state)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        runners.append(runner)
        await runner.setup()
        files = mount(tmp_path / certificate, certificate)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(f"{files.directory}/tls.crt", f"{files.directory}/tls.key")
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        port = runner.addresses[0][1]
        return DriverTarget("127.0.0.1", port, "s3cret", authority=authority(ca), name=name)

    yield serve
    for runner in runners:
        await runner.cleanup()


async def answer_state(_request):
    return web.json_response(STATE)


async def test_a_driver_is_believed_by_authority_and_name_whatever_its_address(client, secured):
    assert (await client.state(await secured("clicks"))).epoch == 5


@pytest.mark.parametrize(
    ("certificate", "ca", "says"),
    [
        ("expired", "ca", "certificate has expired"),
        ("neighbour", "ca", "Hostname mismatch"),
        ("stranger", "ca", "unable to get local issuer certificate"),
        ("clicks", "other-ca", "unable to get local issuer certificate"),
    ],
)
async def test_a_driver_that_is_not_believed_hears_nothing(client, secured, certificate, ca, says):
    with pytest.raises(EndpointUntrusted, match=says) as untrusted:
        await client.state(await secured(certificate, ca))
    assert "spec.security.tls" in str(untrusted.value)


async def test_an_authority_that_is_no_certificate_is_told(client, driver):
    target = dataclasses.replace(driver.target, authority="none", name=NAME)
    with pytest.raises(EndpointUntrusted, match=r"ca\.crt"):
        await client.state(target)
    assert driver.seen == []


async def test_a_driver_in_the_clear_is_not_spoken_to_where_tls_is_wanted(client, driver):
    target = dataclasses.replace(driver.target, authority=authority(), name=NAME)
    with pytest.raises(EndpointUnreachable) as unreachable:
        await client.state(target)
    assert type(unreachable.value) is EndpointUnreachable, "its certificate was never looked at"
    assert driver.seen == []


async def test_a_request_is_sent_as_json(client, driver):
    view = {"requestId": "r", "kind": "Stop", "state": "Pending"}
    driver.answer = lambda _: web.json_response(view, status=202)
    found = await client.ask(driver.target, "/stop", StopBody(request_id="r", mode="Checkpoint"))
    assert found.state == "Pending"
    sent = json.loads(driver.seen[0][3])
    assert (sent["requestId"], sent["mode"]) == ("r", "Checkpoint")
    assert "name" not in sent


@pytest.mark.parametrize(("code", "status"), [("request_conflict", 409), ("unauthorized", 401)])
async def test_a_refusal_has_the_drivers_code(client, driver, code, status):
    error = {"error": {"code": code, "message": "no"}}
    driver.answer = lambda _: web.json_response(error, status=status)
    with pytest.raises(EndpointRefused, match="no") as refused:
        await client.state(driver.target)
    assert refused.value.code == code


def ending(_):
    return web.json_response({"error": {"code": "ending", "message": "ends"}}, status=503)


def redirect(_):
    return web.Response(status=302, headers={"Location": "http://example.invalid/"})


def bomb(_):
    body = gzip.compress(b"0" * 10_000_000)
    return web.Response(body=body, headers={"Content-Encoding": "gzip"})


@pytest.mark.parametrize(
    "answer",
    [
        ending,
        redirect,
        bomb,
        lambda _: web.Response(text="<html>mesh</html>"),
        lambda _: web.Response(text="<html>mesh</html>", status=502),
        lambda _: web.json_response([1]),
        lambda _: web.json_response({"attempt": "x"}),
        lambda _: web.Response(body=b'{"a":"' + b"0" * 400_000 + b'"}'),
    ],
)
async def test_everything_else_is_no_answer(client, driver, answer):
    driver.answer = answer
    with pytest.raises(EndpointUnreachable) as silence:
        await client.state(driver.target)
    assert "s3cret" not in str(silence.value)
    assert len(str(silence.value)) < 500


@pytest.mark.parametrize(
    "said",
    [
        {"load": {"busySeconds": float("nan")}},
        {"load": {"fixedSeconds": float("inf")}},
        {"load": {"lagRows": 10**400}},
        {"busyRatio": float("nan")},
        {"stateBytes": -(10**400)},
        {"lastMoveTime": "9999-12-31T23:59:59Z"},
        {"answeredAt": "0001-01-01T00:00:00Z"},
    ],
)
async def test_what_nobody_can_reckon_with_is_no_answer(client, driver, said):
    driver.answer = lambda _: web.json_response({**STATE, **said})
    with pytest.raises(EndpointUnreachable, match="cannot be read"):
        await client.state(driver.target)


async def test_no_answer_in_time_is_none(hasty, driver):
    driver.answer = lambda _: asyncio.sleep(30)
    with pytest.raises(EndpointUnreachable, match="TimeoutError"):
        await hasty.state(driver.target)


async def test_an_answer_that_trickles_is_cut_off(hasty, driver):
    async def trickle(request):
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(100):
            await response.write(b" ")
            await asyncio.sleep(0.05)
        return response

    driver.answer = trickle
    with pytest.raises(EndpointUnreachable):
        await asyncio.wait_for(hasty.state(driver.target), 3)


async def test_nobody_there_is_no_answer(client):
    with pytest.raises(EndpointUnreachable):
        await client.state(DriverTarget("127.0.0.1", 1, "t"))


def test_asking_drivers_of_many_authorities_in_turn_reads_each_certificate_once():
    text, before = authority(), _context.cache_info().misses
    for _ in range(2):
        for number in range(400):
            _context(text + "\n" * number)
    assert _context.cache_info().misses - before <= 400
