"""A job whose pods speak TLS: by a certificate that somebody made, renews, and once gets wrong.

The job is there before its certificate is, as where an issuer takes its time.
"""

import json

import pytest

from moorage_api.driver import ENDPOINT_PORT, certificate_name
from moorage_api.reserved import SIDECAR_PORT, TLS_DIR

from .e2e_certificates import Authority
from .e2e_cluster import wait_until
from .ticker import Ticker

SECRET = "ticker-tls"  # noqa: S105 - its name
# Run in a pod that has the job's certificate: what the servers at some addresses say to whom.
PROBE = """
import json, socket, ssl, sys
folder, name, *places = sys.argv[1:]
def context(mine):
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.load_verify_locations(f"{folder}/ca.crt")
    if mine:
        made.load_cert_chain(f"{folder}/tls.crt", f"{folder}/tls.key")
    return made
def answer(connection, question):
    try:
        connection.sendall(question)
        return connection.recv(100).decode(errors="replace")
    except OSError as error:
        return str(error)
def said(place, question, secured):
    with socket.create_connection(place, 10) as plain:
        if secured is None:
            return {"answer": answer(plain, question)}
        with secured.wrap_socket(plain, server_hostname=name) as inside:
            serial = int(inside.getpeercert()["serialNumber"], 16)
            found = {"serial": serial, "version": inside.version()}
            return {**found, "answer": answer(inside, question)}
found = []
for place in places:
    role, host, port = place.split(",")
    asked = b"GET /state HTTP/1.0\\r\\n\\r\\n" if role == "driver" else b""
    ways = {"ours": context(True), "stranger": context(False), "plain": None}
    answers = {way: said((host, int(port)), asked, how) for way, how in ways.items()}
    found.append({"role": role, **answers})
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def ticker(namespace, images, pull_policy, s3):
    """The job, which is told that its Secret is not there."""
    ticker = Ticker(namespace, images["job"], pull_policy, s3, "spark")
    ticker.start(security={"tls": {"secretName": SECRET}})
    return ticker


def name_of(ticker):
    return certificate_name(ticker.name, ticker.namespace.name)


def probe(ticker):
    """What each of the job's servers says to whom."""
    ports = {"driver": ENDPOINT_PORT, "executor": SIDECAR_PORT}
    places = [
        f"{role},{pod['status']['podIP']},{port}"
        for role, port in ports.items()
        for pod in ticker.namespace.pods(role)
    ]
    said = ticker.namespace.run_in(
        ticker.driver["metadata"]["name"],
        *("driver", "python", "-c", PROBE, TLS_DIR, name_of(ticker), *places),
    )
    return json.loads(said.strip().splitlines()[-1])


def uids(ticker):
    return {pod["metadata"]["uid"] for pod in (ticker.driver, *ticker.namespace.pods("executor"))}


def test_a_job_waits_for_its_certificate_and_says_so_and_then_runs_with_it(ticker, authority):
    def told():
        return "spec.security.tls.secretName" in str(ticker.namespace.status())

    wait_until(told, 60, "the Secret that is not there is named")
    assert not ticker.namespace.pods("driver")
    ticker.namespace.apply(authority.secret(SECRET, name_of(ticker)))
    ticker.wait_ready()
    ticker.wait_checkpoints()
    ticker.take_savepoint("sealed")
    ticker.audit()


def test_nothing_is_said_in_the_clear_and_no_state_to_who_has_no_certificate(ticker, authority):
    driver, *servers = probe(ticker)
    assert [one["role"] for one in (driver, *servers)] == ["driver", "executor", "executor"]
    for found in (driver, *servers):
        assert found["ours"]["serial"] == authority.serial
        assert found["ours"]["version"] == "TLSv1.3"
        for secret in ("HTTP", "MOORSTA"):
            assert secret not in found["plain"]["answer"]
    # The driver knows who asks by a token, state servers by a certificate and a token.
    for who in ("ours", "stranger"):
        assert " 401 " in driver[who]["answer"]
    for found in servers:
        assert found["ours"]["answer"].startswith("MOORSTA")
        assert "certificate required" in found["stranger"]["answer"].lower().replace("_", " ")


@pytest.mark.scenario(40)
def test_a_deleted_executor_pod_is_replaced_by_one_that_is_believed(ticker):
    before = ticker.attempt
    gone = ticker.namespace.pods("executor")[0]["metadata"]["name"]
    ticker.namespace.delete("Pod", gone, "v1", grace_period_seconds=0)
    wait_until(
        lambda: (
            ticker.namespace.status()["executors"]["ready"] == 2
            and gone not in {pod["metadata"]["name"] for pod in ticker.namespace.pods("executor")}
        ),
        300,
        "two executors again",
    )
    ticker.wait_checkpoints(2, seconds=420)
    assert ticker.attempt == before
    ticker.audit()


def test_a_renewed_certificate_is_taken_up_in_every_pod_and_nothing_is_restarted(ticker, authority):
    before = uids(ticker)
    ticker.namespace.apply(authority.secret(SECRET, name_of(ticker)))

    def renewed():
        return {found["ours"]["serial"] for found in probe(ticker)} == {authority.serial}

    wait_until(renewed, 240, "every pod shows the new certificate")
    ticker.wait_checkpoints(2)
    ticker.take_savepoint("renewed")
    assert uids(ticker) == before
    ticker.audit()


def test_a_certificate_of_another_job_is_named_and_the_right_one_leads_out_of_it(ticker, authority):
    before = ticker.attempt
    ticker.namespace.apply(authority.secret(SECRET, "orders-driver.team.svc"))
    name = ticker.driver["metadata"]["name"]
    ticker.namespace.delete("Pod", name, "v1", grace_period_seconds=0)

    def told():
        said = str(ticker.namespace.status())
        return "the certificate will not do" in said and SECRET in said

    wait_until(told, 240, "the certificate that will not do is named")
    ticker.namespace.apply(authority.secret(SECRET, name_of(ticker)))
    ticker.wait_ready(attempt=before + 2)
    ticker.wait_checkpoints()
    ticker.audit()
