"""`moorage render`: what a cluster needs for a job, as plain manifests for `kubectl apply`.

The definitions, the rights of drivers, and the job. Not the operator: that is the chart's, and its
values are too many for a second place.
"""

import re
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from moorage.cli.checks import checked_job, namespace_of
from moorage.cli.output import Output, print_document
from moorage_api import ManifestError, Problem, StatefulSparkJob, cluster_problems
from moorage_api.crds import job_crd, snapshot_crd
from moorage_api.explain import judge
from moorage_api.fleet import limit_problems, read_fleet, with_defaults
from moorage_api.problems import field_name
from moorage_state.errors import UserError

DRIVER_RULES = [
    {
        "apiGroups": [""],
        "resources": ["pods", "configmaps", "services", "persistentvolumeclaims"],
        "verbs": [
            "get",
            "list",
            "watch",
            "create",
            "update",
            "patch",
            "delete",
            "deletecollection",
        ],
    }
]
"""What drivers need; as the chart has it, which a test sees to."""

_HEAD = """\
# Made by `moorage render`: {what}.
# Not in here: the operator, which jobs need; install it with helm from charts/moorage.
# kubectl apply --server-side -f FILE
"""
_USUAL_ACCOUNT = "spark"
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def render(
    manifest: Annotated[
        Path | None,
        typer.Argument(metavar="[JOB.yaml]", help="A job, to be part of it.", show_default=False),
    ] = None,
    *,
    fleet: Annotated[
        Path | None,
        typer.Option(
            help="The operator's fleet file: the job is shown with its profile's values, and is "
            "held to its limits.",
            show_default=False,
        ),
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", "-n", help="Of jobs; the job's own, or default, without it."),
    ] = None,
    definitions: Annotated[
        bool, typer.Option(help="With the definitions, which a cluster needs once.")
    ] = True,
    output: Output = "table",
) -> None:
    """Print manifests for kubectl: the definitions, the drivers' account, and a job."""
    job: dict[str, Any] | None = None
    account = _USUAL_ACCOUNT
    if manifest is not None:
        found = checked_job(manifest, "cluster")
        account = found.spec.service_account_name or account
        namespace = namespace_of(found, namespace)
    namespace = namespace or "default"
    if not _NAMESPACE.fullmatch(namespace):
        raise UserError(
            f"not the name of a namespace: namespace={namespace!r}; use small letters, digits and "
            f"dashes, 63 at most, and begin and end with a letter or digit"
        )
    if manifest is not None:
        job = yaml.safe_load(manifest.read_text(encoding="utf-8"))
        job["metadata"]["namespace"] = namespace
        if fleet is not None:
            job = _in_fleet(job, manifest, fleet)
            account = job["spec"].get("serviceAccountName") or _USUAL_ACCOUNT
    documents, parts = [], []
    if definitions:
        documents += [job_crd(), snapshot_crd()]
        parts.append("the definitions")
    documents += account_of(account, namespace)
    parts.append(f"the drivers' account {account} in {namespace}")
    if job is not None:
        documents.append(job)
        parts.append(f"the job {job['metadata']['name']}")
    if output != "table":
        # A list of Kubernetes, so that kubectl takes this, too.
        print_document("render", {"apiVersion": "v1", "kind": "List", "items": documents}, output)
        return
    typer.echo(_HEAD.format(what=", ".join(parts)), nl=False)
    typer.echo(yaml.safe_dump_all(documents, sort_keys=False, explicit_start=True), nl=False)


def _in_fleet(job: dict[str, Any], manifest: Path, file: Path) -> dict[str, Any]:
    """The job as the operator goes by it; refuses what the operator would."""
    try:
        rules = read_fleet(file.read_bytes())
    except OSError as error:
        raise UserError(f"the fleet file cannot be read: {file}: {error.strerror}") from error
    if rules.problems:
        raise ManifestError(str(file), rules.problems)
    namespace, spec = job["metadata"]["namespace"], job["spec"]
    profile = rules.profile(namespace, spec.get("profile"))
    if profile.values is None:
        raise ManifestError(str(manifest), profile.problems)
    filled = {**job, "spec": with_defaults(spec, profile.values)}
    verdict = judge(filled)
    if not isinstance(verdict, StatefulSparkJob):
        found = [Problem(field_name(one.path), one.reason, one.fix) for one in verdict]
        raise ManifestError(f"{manifest} with profile {profile.name}", found)
    beyond = [*cluster_problems(verdict), *limit_problems(rules.limits(namespace), verdict.spec)]
    if beyond:
        raise ManifestError(f"{manifest} with {file}", beyond)
    return filled


def account_of(name: str, namespace: str) -> list[dict[str, Any]]:
    """The service account of drivers, with their rights, in the namespace of jobs."""
    labels = {"app.kubernetes.io/part-of": "moorage"}
    rbac, role = "rbac.authorization.k8s.io", f"{name}-driver"
    return [
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": name, "namespace": namespace, "labels": dict(labels)},
            "automountServiceAccountToken": False,
        },
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "Role",
            "metadata": {"name": role, "namespace": namespace, "labels": dict(labels)},
            "rules": DRIVER_RULES,
        },
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": role, "namespace": namespace, "labels": dict(labels)},
            "roleRef": {"apiGroup": rbac, "kind": "Role", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        },
    ]
