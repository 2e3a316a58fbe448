"""What is mounted is read strictly: a broken file is named, with what is wrong with it."""

import base64
import json
import math

import pytest
from moorage_testing.tls import mount as put_certificate

from moorage.cluster.orders import (
    BadOrders,
    NotSupported,
    OrdersRefused,
    Places,
    read_orders,
    sample_request,
)
from moorage.driver.requests import SampleRequest
from moorage.driver.settings import JobSettings
from moorage.driver.types import Orders
from moorage.redaction import Redactor
from moorage_api.driver import SampleBody
from moorage_state.server.tls import TlsFiles

from .conftest import TOKEN, mounted_files


def start(**fields: object) -> str:
    return json.dumps({**json.loads(mounted_files()["start_json"]), **fields})


def job(text: str) -> str:
    return mounted_files()["job_yaml"] + text


def test_what_is_mounted_becomes_orders(mount):
    restore = {"mode": "Path", "path": "s3://sp/x", "digest": "sha256:1", "orderId": "o"}
    places = mount(start_json=start(restore=restore, adoptLineage="lin"))
    mounted = read_orders(places, {"MOORAGE_POD_NAME": "clicks-3-driver"})
    assert mounted.token == TOKEN
    assert mounted.spark == {"spark.executor.cores": "2"}
    assert mounted.orders == Orders(
        cluster="prod",
        uid="uid-1",
        holder="clicks-3-driver attempt 3",
        adopt_lineage="lin",
        mode="Path",
        path="s3://sp/x",
        digest="sha256:1",
        order_id="o",
    )


def test_one_that_stands_by_is_told_which_sample_to_tell_for_as_long_as_it_does(mount):
    sample = {"percent": 20, "exceptColumns": ["at"]}
    orders = read_orders(mount(start_json=start(standby=True, sample=sample))).orders
    assert orders.sample == SampleRequest(20, ("at",), seconds=math.inf)
    asked = SampleBody(percent=20, except_columns=("at",), seconds=9.0)
    assert sample_request(asked) == SampleRequest(20, ("at",), seconds=9.0)
    assert sample_request(None) is None


def test_orders_and_state_servers_have_tokens_of_their_own(mount):
    places = mount(control="a-token-for-orders-only", scrape="a-token-that-only-reads")
    mounted = read_orders(places)
    assert (mounted.control, mounted.token) == ("a-token-for-orders-only", TOKEN)
    assert mounted.scrape.read_text() == "a-token-that-only-reads"


def test_an_older_operators_one_token_is_for_everything(mount):
    mounted = read_orders(mount())
    assert mounted.control == mounted.token == TOKEN


TLS = "  security: {tls: {secretName: clicks-tls}}\n"


def test_a_certificate_is_looked_at_before_anything_begins(mount, tmp_path):
    places = mount(job_yaml=job(TLS))
    put_certificate(tmp_path / "tls")
    assert read_orders(places).tls == TlsFiles(str(tmp_path / "tls"), "clicks-driver.team.svc")


@pytest.mark.parametrize(
    ("certificate", "says"),
    [
        ("expired", "certificate has expired"),
        ("stranger", "unable to get local issuer certificate"),
        ("neighbour", "Hostname mismatch"),
        ("", "No such file"),
    ],
)
def test_a_certificate_that_will_not_do_ends_the_driver_with_a_code_of_its_own(
    mount, tmp_path, certificate, says
):
    places = mount(job_yaml=job(TLS))
    if certificate:
        put_certificate(tmp_path / "tls", certificate)
    with pytest.raises(OrdersRefused, match=says) as refused:
        read_orders(places)
    assert (refused.value.code, refused.value.attempt) == ("bad_certificate", 3)
    assert "spec.security.tls: clicks-tls" in str(refused.value)


def test_no_token_is_said(mount, tmp_path):
    file = tmp_path / "spark-file"
    file.write_text("what-spark-knows-itself-by")
    settings = json.dumps({"spark.authenticate.secret.file": str(file)})
    mounted = read_orders(mount(control="a-token-for-orders-only", spark_json=settings))
    secrets = [mounted.token, mounted.control, "what-spark-knows-itself-by"]
    told = Redactor({}, *mounted.secrets)(" ".join(secrets + [in_base64(s) for s in secrets]))
    assert set(told.split()) == {"***"}


def in_base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"control": "short"}, "control characters=5"),
        ({"start_json": None}, r"start\.json error=No such file"),
        ({"start_json": "{"}, r"start\.json"),
        ({"start_json": start(format=9)}, r"start\.json format"),
        ({"start_json": start(attempt="3")}, r"start\.json attempt"),
        ({"start_json": start(attempt=0)}, r"start\.json attempt"),
        ({"start_json": start(more=1)}, r"start\.json more"),
        ({"start_json": start(graceSeconds=0)}, r"start\.json graceSeconds"),
        ({"start_json": start(jobUid="uid-2")}, r"two objects.*uid=uid-1.*jobUid=uid-2"),
        ({"start_json": start(clusterId=" ")}, "no clusterId"),
        ({"start_json": start(restore={"mode": "Path", "orderId": "o"})}, "without a path"),
        ({"start_json": start(restore={"mode": "Path", "path": "chk-1"})}, "without an orderId"),
        ({"start_json": start(restore={"mode": "Empty"})}, "without an orderId"),
        ({"job_yaml": None}, r"job\.yaml.* does not exist"),
        ({"job_yaml": job("more: 1\n")}, r"more .*is not a field"),
        ({"job_yaml": mounted_files()["job_yaml"].replace("  namespace: team\n", "")}, "namespace"),
        ({"job_yaml": "x" * 2_000_000}, "job"),
        ({"spark_json": None}, r"spark\.json error=No such file"),
        ({"spark_json": '{"spark.a": 1}'}, r"spark\.json spark\.a"),
        ({"spark_json": "[]"}, r"spark\.json"),
        ({"token": None}, "token error=No such file"),
        ({"token": "short"}, "characters=5"),
        ({"token": "with a space in the middle"}, "is not one"),
    ],
)
def test_what_is_broken_is_named(mount, files, says):
    places = mount(**files)
    far = Places(places.config, places.token, places.termination, "127.0.0.1", 0)
    with pytest.raises(BadOrders, match=f"(?s){says}") as caught:
        read_orders(far, {})
    assert "a space in" not in str(caught.value)


@pytest.mark.parametrize(("file", "attempt"), [("start_json", 0), ("job_yaml", 3), ("token", 3)])
def test_the_refusal_names_the_attempt_where_that_can_be_read(mount, file, attempt):
    with pytest.raises(BadOrders) as caught:
        read_orders(mount(**{file: "{"}), {})
    assert caught.value.attempt == attempt


def test_what_no_release_has_is_refused_and_what_the_operator_does_is_not(mount):
    schedule = "  savepoint: {schedule: {cron: '0 3 * * *'}}\n"
    assert read_orders(mount(job_yaml=job(schedule)), {}).job.spec.savepoint.schedule is not None
    text = mounted_files()["job_yaml"].replace(
        "  scaling:\n", "  scaling:\n    repartition: Offline\n"
    )
    with pytest.raises(NotSupported, match=r"spec\.scaling\.repartition"):
        read_orders(mount(job_yaml=text), {})


@pytest.mark.parametrize(("order", "claims"), [("o-7", False), ("nonce-3-1f2e", True)])
def test_an_order_wins_over_the_manifest(mount, tmp_path, order, claims):
    """And claims only what is ordered since the manifest names it."""
    (tmp_path / "job.py").touch()
    text = mounted_files()["job_yaml"].replace("/app/job.py", f"/{tmp_path}/job.py")
    text += "  restore: {mode: Path, path: chk-9, nonce: 3, claimMode: Claim}\n"
    restore = {"mode": "Empty", "orderId": order}
    mounted = read_orders(mount(job_yaml=text, start_json=start(restore=restore)), {})
    settings = JobSettings.of(mounted.job, tmp_path, None, mounted.orders)
    assert (settings.uid, settings.cluster) == ("uid-1", "prod")
    policy = settings.restore
    assert (policy.mode, policy.path, policy.order_id) == ("Empty", "", order)
    assert policy.claim == claims
    assert not policy.explicit
    assert not policy.acknowledge_state_loss


@pytest.mark.parametrize("port", ["", "x", "-1", "70000", "٣"])
def test_a_port_is_a_number(port):
    with pytest.raises(BadOrders, match="not a port"):
        Places.of({"MOORAGE_ENDPOINT_PORT": port})


def test_places_are_those_of_the_contract_unless_moved(tmp_path):
    usual = Places.of({})
    assert (str(usual.config), str(usual.token)) == (
        "/etc/moorage/config",
        "/etc/moorage/token/token",
    )
    assert (usual.port, usual.local) == (7780, False)
    moved = Places.of({"MOORAGE_CONFIG_DIR": str(tmp_path), "MOORAGE_ENVIRONMENT": "local"})
    assert (moved.config, moved.local) == (tmp_path, True)
