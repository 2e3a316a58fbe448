"""Alerts and dashboard ask for what the code measures."""

import json
import re
from typing import get_args

import pytest
import yaml
from moorage_testing.chart import CHART, ROOT, of_kind

from moorage.cluster.metrics import METRICS
from moorage_api.driver import ENDPOINT_PORT
from moorage_api.reserved import (
    BLOCK_MANAGER_PORT,
    DRIVER_PORT,
    SIDECAR_HEALTH_PORT,
    SIDECAR_PORT,
)
from moorage_api.status import Phase
from moorage_operator.children import pod_monitor
from moorage_operator.children.names import labels, scrape_secret_name
from moorage_operator.metrics import ApiMetrics, OperatorMetrics
from moorage_operator.world import Meta

ALERTS = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
DASHBOARD = json.loads((CHART / "files" / "dashboard.json").read_text())
NAME = re.compile(r"\bmoorage_[a-z_]+")
END = re.compile(r"_(bucket|sum|count|total)$")
SELECTOR = re.compile(r"(moorage_[a-z_]+)\{([^}]*)\}")
LABEL = re.compile(r'([a-z_]+)\s*(?:=~|!~|!=|=)\s*"')


def whole_registry():
    """All that an operator measures."""
    registry = OperatorMetrics().registry
    ApiMetrics(registry)
    return registry


def measured():
    """Every series that code exposes, with its labels."""
    found = {}
    for metric in METRICS:
        ends = ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
        for end in ends:
            found[metric.name + end] = {"job", "namespace", *metric.labels}
    for family in whole_registry().collect():
        if family.type == "histogram":
            names = [f"{family.name}{end}" for end in ("_bucket", "_sum", "_count")]
        else:
            names = [family.name + ("_total" if family.type == "counter" else "")]
        for name in names:
            labels = getattr(family, "_labelnames", ())
            found[name] = {*labels, *OPERATOR_LABELS.get(family.name, ())}
    return found


OPERATOR_LABELS = {
    "moorage_operator_reconcile_seconds": ("kind", "outcome"),
    "moorage_operator_transitions": ("kind", "to"),
    "moorage_operator_build_info": ("version",),
    "moorage_operator_api_request_seconds": ("method", "code"),
    "moorage_operator_restarts": ("reason",),
    "moorage_operator_events": ("kind", "reason"),
    "moorage_operator_store_task_failures": ("code",),
    "moorage_operator_memory_bytes": ("shard",),
}


def expressions():
    for alert in ALERTS:
        yield alert["alert"], alert["expr"]
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["definition"]


CASES = list(expressions())
each_query = pytest.mark.parametrize(
    ("where", "text"), CASES, ids=[f"{where}-{i}" for i, (where, _) in enumerate(CASES)]
)


@pytest.mark.parametrize(
    ("where", "text"), CASES, ids=[f"{w}-{i}" for i, (w, _) in enumerate(CASES)]
)
def test_a_query_asks_for_metrics_that_the_code_exposes(where, text):
    names = set(NAME.findall(text))
    assert names, where
    assert names <= set(measured())


@pytest.mark.parametrize(
    ("where", "text"), CASES, ids=[f"{w}-{i}" for i, (w, _) in enumerate(CASES)]
)
def test_a_query_chooses_by_labels_that_the_metric_has(where, text):
    known = measured()
    for name, inside in SELECTOR.findall(text):
        assert set(LABEL.findall(inside)) <= known[name], where


@pytest.mark.parametrize(
    ("where", "text"), CASES, ids=[f"{w}-{i}" for i, (w, _) in enumerate(CASES)]
)
def test_a_querys_brackets_are_closed(where, text):
    pairs = {")": "(", "]": "[", "}": "{"}
    stack = []
    for letter in re.sub(r'"[^"]*"', "", text):
        if letter in "([{":
            stack.append(letter)
        elif letter in pairs:
            assert stack, where
            assert stack.pop() == pairs[letter], where
    assert stack == []


def test_phases_in_queries_are_phases_of_jobs():
    named = [
        phase
        for _, text in CASES
        for group in re.findall(r'phase=~?"([^"$]*)"', text)
        for phase in group.split("|")
    ]
    assert set(named) <= set(get_args(Phase))
    assert "Blocked" in named


def test_events_that_queries_choose_are_events_that_are_told():
    page = (ROOT / "docs" / "reference-events.md").read_text()
    told = set(re.findall(r"^\| `(\w+)`", page, re.MULTILINE))
    chosen = [
        pattern
        for _, text in CASES
        for pattern in re.findall(r'moorage_operator_events_total\{[^}]*reason=~"([^"]+)"', text)
    ]
    assert chosen
    for pattern in chosen:
        for one in pattern.split("|"):
            assert any(re.fullmatch(one, reason) for reason in told), one


def test_an_alert_says_what_is_wrong_and_what_to_do():
    assert len({alert["alert"] for alert in ALERTS}) == len(ALERTS)
    for alert in ALERTS:
        assert set(alert) <= {"alert", "expr", "for", "labels", "annotations"}
        assert alert["labels"]["severity"] in {"critical", "warning"}
        assert set(alert["annotations"]) == {"summary", "description"}
        assert alert["annotations"]["description"].rstrip().endswith(".")


def test_every_alert_is_explained_to_people():
    headings = re.findall(r"^## (\w+)$", (ROOT / "docs" / "runbook.md").read_text(), re.MULTILINE)
    assert sorted(headings) == sorted(alert["alert"] for alert in ALERTS)


def test_alerts_link_to_no_page_that_nobody_has_said_is_served(template):
    (rule,) = of_kind(template("--set", "metrics.prometheusRule.enabled=true"), "PrometheusRule")
    for one in rule["spec"]["groups"][0]["rules"]:
        assert one["annotations"]["runbook"] == f"docs/runbook.md, {one['alert']}"
        assert "runbook_url" not in one["annotations"]


def test_thresholds_come_from_the_values(template):
    options = "metrics.prometheusRule.enabled=true,metrics.prometheusRule.checkpointAgeSeconds=77"
    (rule,) = of_kind(template("--set", options), "PrometheusRule")
    rules = {one["alert"]: one for one in rule["spec"]["groups"][0]["rules"]}
    assert set(rules) == {alert["alert"] for alert in ALERTS}
    assert "> 77\n" in rules["MoorageCheckpointTooOld"]["expr"]
    assert rules["MoorageNoCheckpointYet"]["for"] == "77s"
    assert "> 2 * " in rules["MoorageStateGrowing"]["expr"]
    assert rules["MoorageCertificateEnds"]["expr"].endswith("< 604800")
    assert not re.search(r"\$[A-Z]", json.dumps(rule))


def test_alerts_can_be_left_out_and_labelled(rendered):
    (rule,) = of_kind(rendered["full"], "PrometheusRule")
    rules = rule["spec"]["groups"][0]["rules"]
    assert "MoorageStateGrowing" not in {one["alert"] for one in rules}
    for one in rules:
        assert one["labels"]["team"] == "streams"
        assert one["annotations"]["runbook_url"].endswith(f"#{one['alert'].lower()}")


def test_the_dashboard_that_is_installed_is_the_file(rendered):
    (map_,) = [
        one
        for one in of_kind(rendered["full"], "ConfigMap")
        if one["metadata"]["name"].endswith("-dashboard")
    ]
    assert json.loads(map_["data"]["moorage.json"]) == DASHBOARD
    assert map_["metadata"]["namespace"] == "monitoring"
    assert map_["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_all_that_the_operator_measures_is_on_the_dashboard():
    texts = [t["expr"] for panel in DASHBOARD["panels"] for t in panel.get("targets", ())]
    shown = {END.sub("", name) for text in texts for name in NAME.findall(text)}
    assert {family.name for family in whole_registry().collect()} - shown == set()


def test_panels_do_not_lie_on_each_other():
    taken: set[tuple[int, int]] = set()
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_a_drivers_monitor_finds_its_pod_port_and_token(rendered):
    monitor, _ = of_kind(rendered["full"], "PodMonitor")
    pod = labels(Meta("clicks", "streams", "u", 1, "1"), "driver", 7)
    assert monitor["spec"]["selector"]["matchLabels"].items() <= pod.items()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["authorization"]["credentials"]["name"] == scrape_secret_name("clicks")
    assert endpoint["port"] == "endpoint"
    assert "scheme" not in endpoint
    assert monitor["metadata"]["namespace"] == "streams"


def test_a_monitor_of_a_job_with_tls_believes_what_the_operators_own_does(rendered):
    _, monitor = of_kind(rendered["full"], "PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    made = pod_monitor(Meta("orders", "streams", "u", 1, "1"), "orders-tls")
    (by_operator,) = made["spec"]["podMetricsEndpoints"]
    for part in ("port", "path", "honorLabels", "scheme", "tlsConfig"):
        assert endpoint[part] == by_operator[part]


def ports(rule):
    found = set()
    for port in rule["ports"]:
        found |= set(range(port["port"], port.get("endPort", port["port"]) + 1))
    return found


def policies(objects, end):
    return [p for p in of_kind(objects, "NetworkPolicy") if p["metadata"]["name"].endswith(end)]


def test_the_jobs_policy_lets_in_what_jobs_need(rendered):
    found = policies(rendered["namespaced"], "-jobs")
    assert [one["metadata"]["namespace"] for one in found] == ["jobs-a", "jobs-b"]
    endpoint, spark = found[0]["spec"]["ingress"]
    assert ports(endpoint) == {ENDPOINT_PORT}
    servers = set(range(SIDECAR_PORT, SIDECAR_PORT + 64))
    between = {DRIVER_PORT, BLOCK_MANAGER_PORT, SIDECAR_HEALTH_PORT, ENDPOINT_PORT}
    assert ports(spark) == between | servers


def test_the_jobs_policy_knows_the_operators_pod(rendered):
    (deployment,) = of_kind(rendered["namespaced"], "Deployment")
    endpoint, _ = policies(rendered["namespaced"], "-jobs")[0]["spec"]["ingress"]
    (peer,) = endpoint["from"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert peer["podSelector"]["matchLabels"].items() <= labels.items()
    assert peer["namespaceSelector"]["matchLabels"] == {
        "kubernetes.io/metadata.name": deployment["metadata"]["namespace"]
    }


def test_the_operators_policy_lets_it_reach_server_drivers_and_store(rendered):
    (policy,) = policies(rendered["namespaced"], "-moorage")
    names, server, drivers, store = policy["spec"]["egress"]
    assert ports(names) == {53}
    assert server["to"] == [{"ipBlock": {"cidr": "10.0.0.1/32"}}]
    assert ports(server) == {443, 6443}
    assert ports(drivers) == {ENDPOINT_PORT}
    (peer,) = drivers["to"]
    assert peer["namespaceSelector"]["matchExpressions"][0]["values"] == ["jobs-a", "jobs-b"]
    assert ports(store) == {443}


def test_an_operator_that_sends_store_tasks_reaches_no_store(rendered):
    (policy,) = policies(rendered["full"], "-moorage")
    assert len(policy["spec"]["egress"]) == 3
