"""The objects of one attempt, as complete desired bodies for server-side apply.

Decides what a driver's pod and what is mounted into it look like. Pure: the same job, spec,
revision and order give the same bytes, so that applying them again after a crash changes nothing.
The loop carries the bodies out in their order; the pod is the last, since it needs the others.
"""

import json
from typing import Any

import yaml

from moorage_api import API_VERSION, KIND, JobSpec
from moorage_api.driver import ENDPOINT_PORT, METRICS_PATH, StartOrder, certificate_name
from moorage_api.ingress import ingress_place
from moorage_api.lifecycle import FailurePolicy, OperatorSettings, Ui, Upgrade
from moorage_api.model import Model
from moorage_operator.children.names import (
    budget_name,
    config_map_name,
    labels,
    owner_reference,
    scrape_secret_name,
    selector,
    service_name,
)
from moorage_operator.children.pods import driver_pod, executor_template
from moorage_operator.children.spark_conf import spark_settings
from moorage_operator.world import Meta

Object = dict[str, Any]


def bodies(meta: Meta, spec: JobSpec, revision: str, order: StartOrder) -> list[Object]:
    """Return what an attempt needs besides its Secrets, in the order of making it.

    Service, ConfigMap and pod. The Secrets come before the pod, and the attempt's own after the
    ConfigMap, which owns it.

    Args:
        spec: what is to run: the revision's, not the newest.
    """
    return [
        service(meta),
        config_map(meta, spec, revision, order),
        driver_pod(meta, spec, revision, order),
    ]


def service(meta: Meta) -> Object:
    """A name for the endpoint of whichever driver is ready: for metrics and people."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(meta, service_name(meta.name)),
        "spec": {
            "clusterIP": "None",
            "selector": selector(meta.uid, "driver"),
            "ports": [
                {
                    "name": "endpoint",
                    "port": ENDPOINT_PORT,
                    "protocol": "TCP",
                    "targetPort": ENDPOINT_PORT,
                }
            ],
        },
    }


def pod_monitor(meta: Meta, tls_secret: str = "") -> Object:
    """How Prometheus finds the driver, the token that its metrics ask for, and what it believes."""
    credentials = {"name": scrape_secret_name(meta.name), "key": "token"}
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": _metadata(meta, service_name(meta.name)),
        "spec": {
            "selector": {"matchLabels": selector(meta.uid, "driver")},
            "podMetricsEndpoints": [
                {
                    "port": "endpoint",
                    "path": METRICS_PATH,
                    # Each series says its job by itself; Prometheus would write its own over it.
                    "honorLabels": True,
                    **_scheme(meta, tls_secret),
                    "authorization": {"type": "Bearer", "credentials": credentials},
                }
            ],
        },
    }


def ingress(meta: Meta, ui: Ui) -> Object:
    """What leads from outside to the page of whichever driver is ready."""
    place = ingress_place(ui, meta.namespace, meta.name)
    service = {"name": service_name(meta.name), "port": {"name": "endpoint"}}
    path = {"path": place.path, "pathType": place.path_type, "backend": {"service": service}}
    rule: Object = {"http": {"paths": [path]}}
    made = _metadata(meta, service_name(meta.name))
    made["labels"] = {**ui.labels, **made["labels"]}
    if ui.annotations:
        made["annotations"] = dict(ui.annotations)
    spec: Object = {"rules": [{"host": place.host, **rule} if place.host else rule]}
    if ui.class_name:
        spec["ingressClassName"] = ui.class_name
    if ui.tls:
        spec["tls"] = [
            one.model_dump(mode="json", by_alias=True, exclude_defaults=True) for one in ui.tls
        ]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": made,
        "spec": spec,
    }


def disruption_budget(meta: Meta, role: str, least: int, attempt: int) -> Object:
    """What keeps so many pods of a role of an attempt from being evicted.

    A number that is left, and no share and no number that may go: those need an owner of the pods
    that says how many there are to be, and neither a job nor a driver's pod does. A pod that is
    not ready protects nothing and may go.
    """
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(meta, budget_name(meta.name, role)),
        "spec": {
            "minAvailable": least,
            "selector": {"matchLabels": selector(meta.uid, role, attempt)},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def _scheme(meta: Meta, tls_secret: str) -> Object:
    if not tls_secret:
        return {"scheme": "http"}
    authority = {"secret": {"name": tls_secret, "key": "ca.crt"}}
    name = certificate_name(meta.name, meta.namespace)
    return {"scheme": "https", "tlsConfig": {"ca": authority, "serverName": name}}


def config_map(meta: Meta, spec: JobSpec, revision: str, order: StartOrder) -> Object:
    """The files that the driver reads: the job, its orders, Spark's settings, the template."""
    name = config_map_name(meta.name, order.attempt)
    made = _metadata(meta, name)
    made["labels"] = labels(meta, attempt=order.attempt)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": made,
        "data": {
            "job.yaml": _yaml(job_document(meta, spec)),
            "start.json": _json({"format": order.format, **_said(order)}),
            "spark.json": _json(spark_settings(meta, spec, order)),
            "executor.yaml": _yaml(executor_template(meta, spec, revision, order.attempt)),
        },
    }


def job_document(meta: Meta, spec: JobSpec) -> Object:
    """The manifest as a driver is given it."""
    # What is between the job and the operator is no business of a driver that may not know it: an
    # older one refuses fields that it has not.
    between = {
        "profile": None,
        "operator": OperatorSettings(),
        "failure_policy": FailurePolicy(),
        "upgrade": Upgrade(mode=spec.upgrade.mode),
        "observability": spec.observability.model_copy(update={"ui": Ui()}),
    }
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid},
        "spec": _said(spec.model_copy(update=between)),
    }


def _said(document: Model) -> Object:
    """What a document says beyond the models' defaults."""
    # A runtime that is older than this operator refuses fields that it does not know. So it is not
    # told of those that a later release added and nobody uses; of one that is used it must be.
    said: Object = document.model_dump(
        mode="json", by_alias=True, exclude_none=True, exclude_defaults=True
    )
    return said


def _metadata(meta: Meta, name: str) -> Object:
    return {
        "name": name,
        "namespace": meta.namespace,
        "labels": labels(meta),
        "ownerReferences": [owner_reference(meta)],
    }


def _yaml(data: Object) -> str:
    text: str = yaml.dump(data, Dumper=_Plain, sort_keys=True, default_flow_style=False, width=100)
    return text


class _Plain(yaml.SafeDumper):
    """YAML that Spark's reader takes as we mean it: no anchors, and no text that is a number."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002  the base class's signature
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Quote what a reader of another YAML version may take for a number, such as 1e3."""
    style = None if text[:1].isalpha() or text.startswith("/") else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Plain.add_representer(str, _text)


def _json(data: object) -> str:
    return json.dumps(data, indent=1, sort_keys=True) + "\n"
