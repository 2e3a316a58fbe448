"""`moorage doctor`: whether what a job needs is there, on this machine, in its store, on a cluster.

Everything is looked at, also after something was wrong, and every finding says what to do. Nothing
is changed: a store is tried below `probe/`, as `moorage store check` does, from this machine and
with its credentials, and a cluster is only asked, through the user's own `kubectl`, with the user's
own rights.
"""

import json
import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote

import typer
from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from moorage import __version__
from moorage.cli.checks import Place, checked_job
from moorage.cli.exit_codes import ExitCode
from moorage.cli.findings import Finding, Findings, Outcome, show
from moorage.cli.kubectl import JOBS, OPERATORS, SNAPSHOTS, Ask, kubectl_of, last_line
from moorage.cli.output import Output, print_found
from moorage.driver.java import java_text
from moorage.offline.lookup import directories_of
from moorage.offline.store_check import check_store
from moorage_api import ManifestError, StatefulSparkJob
from moorage_api.crds import job_crd, snapshot_crd
from moorage_state.errors import MoorageError, StoreDenied, StoreUnavailable
from moorage_state.stores import open_store

LEAST_FREE_BYTES = 2 << 30
MOST_CLOCK_SECONDS = 10.0
LEAST_KUBERNETES = (1, 29)
"""What the chart asks for, too."""
KINDS = (JOBS, SNAPSHOTS)
USER_VERBS = (("create", KINDS[0]), ("patch", KINDS[0]), ("create", KINDS[1]))
DRIVER_VERBS = (("create", "pods"), ("create", "configmaps"), ("deletecollection", "pods"))
_UPGRADE = "upgrade operator and definitions, as docs/upgrade.md says: helm upgrade"
_TOLD = 3
"""Of fields that a definition lacks."""


def doctor(
    manifest: Annotated[
        Path | None,
        typer.Argument(metavar="[JOB.yaml]", help="A manifest: checks it and its store, too."),
    ] = None,
    *,
    target: Annotated[Place, typer.Option("--for", help="Where jobs are to run.")] = "local",
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="The namespace of jobs (cluster).")
    ] = None,
    context: Annotated[
        str | None, typer.Option(metavar="NAME", help="The context of kubectl (cluster).")
    ] = None,
    output: Output = "table",
) -> None:
    """Look whether what a job needs is there, and say what to do where it is not."""
    looked = list(_looked(manifest, target, namespace, context))
    found = Findings(all(one.outcome != "failed" for one in looked), looked)
    print_found("doctor", found, output, show)
    if not found.ok:
        raise typer.Exit(ExitCode.BAD_INPUT)


def _looked(
    manifest: Path | None, target: Place, namespace: str | None, context: str | None
) -> Iterator[Finding]:
    yield from machine(target)
    job: StatefulSparkJob | None = None
    if manifest is not None:
        try:
            job = checked_job(manifest, target)
        except ManifestError as error:
            for wrong in error.problems:
                yield Finding("manifest", "failed", f"{manifest}: {wrong.what}", wrong.fix)
        else:
            yield Finding("manifest", "ok", f"{manifest}: job {job.name}")
    if target == "cluster":
        yield from cluster(kubectl_of(context), namespace or (job and job.namespace) or "", job)
    if job is not None:
        yield from stores(str(manifest), target)
    elif target == "cluster" and manifest is None:
        todo = (
            "name a job: moorage doctor JOB.yaml --for cluster; or an address: moorage store check "
            "s3://BUCKET/PREFIX"
        )
        yield Finding("store, clock", "unknown", "not tried: no store was named", todo)


def machine(target: Place) -> Iterator[Finding]:
    """Python, packages; for jobs here also Java, the volume and the folder of sockets."""
    # Here, and not above: it brings Arrow, and other commands answer at once.
    from moorage.driver.control import control_path

    yield Finding("python", "ok", f"{platform.python_version()} at {sys.executable}")
    extras = ("runtime", "cli") if target == "local" else ("cli",)
    yield from packages(metadata.requires("moorage") or [], extras, _installed)
    if target == "cluster":
        return
    try:
        yield Finding("java", "ok", java_text(os.environ))
    except MoorageError as error:
        yield Finding("java", "failed", "none for Spark", str(error))
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    detail = f"{free >> 20:,} MiB free at {folder}"
    if free < LEAST_FREE_BYTES:
        todo = "make room, or name another volume: moorage run --local-dir DIR"
        yield Finding("local volume", "warning", detail, todo)
    else:
        yield Finding("local volume", "ok", detail)
    try:
        yield Finding("control sockets", "ok", str(control_path("doctor").parent))
    except (OSError, MoorageError) as error:
        todo = "savepoints and look-ups cannot be asked for: set TMPDIR to a directory of your own"
        yield Finding("control sockets", "warning", str(error), todo)


def packages(
    required: Sequence[str], extras: Sequence[str], installed: Callable[[str], str | None]
) -> Iterator[Finding]:
    """One finding if all packages are there in a version that is supported, else one for each."""
    wrong, right = [], 0
    for requirement in map(Requirement, required):
        marker = requirement.marker
        if requirement.name == "moorage" or (
            marker and not any(marker.evaluate({"extra": extra}) for extra in ("", *extras))
        ):
            continue
        version = installed(requirement.name)
        if version is None:
            wrong.append((requirement, "is not installed"))
        elif not requirement.specifier.contains(version, prereleases=True):
            wrong.append((requirement, f"{version} is not supported"))
        else:
            right += 1
    for requirement, what in wrong:
        todo = f"pip install '{requirement.name}{requirement.specifier}'"
        yield Finding("packages", "failed", f"{requirement.name}: {what}", todo)
    if not wrong:
        yield Finding("packages", "ok", f"{right} in supported versions")


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def stores(manifest: str, target: Place = "local") -> Iterator[Finding]:
    """The directories of checkpoints and savepoints: whether they do what snapshots rely on.

    And this machine's clock against theirs.
    """
    directories = directories_of(manifest)
    places = {"checkpointDir": directories.checkpoints, "savepointDir": directories.savepoints}
    clocks: list[tuple[float, str]] = []
    for name, url in places.items():
        if url is not None:
            found, ahead = _tried(name, url, target)
            yield from found
            clocks += [(ahead, url)] if ahead is not None else []
    if clocks:
        yield _clock(*max(clocks, key=lambda one: abs(one[0])), target)


def _tried(name: str, url: str, target: Place) -> tuple[Sequence[Finding], float | None]:
    """What a store does, and how far this machine's clock is before its own, if that is known.

    Some stores of a cluster can be reached from its pods alone, which is not their fault.
    """
    in_a_pod = f"try it in a pod with the account of jobs: moorage store check {url}"
    if target == "cluster" and url.startswith("file://"):
        detail = f"{url}: not tried: it is on a volume of the pods"
        return [Finding(name, "unknown", detail, in_a_pod)], None
    if absent := _absent_folder(url):
        return [Finding(name, "ok", f"{absent}: the first run makes it")], None
    try:
        report = check_store(open_store(url), lambda: datetime.now(UTC))
    except MoorageError as error:
        if target == "cluster" and isinstance(error, StoreUnavailable | StoreDenied):
            detail = f"{url}: could not be tried from this machine: {error}"
            return [Finding(name, "unknown", detail, in_a_pod)], None
        return [Finding(name, "failed", url, str(error))], None
    found = [
        Finding(name, "failed", f"{one.name}: {one.problem}", "use another store")
        for one in report.failed
    ]
    done = Finding(name, "ok", f"{url}: {', '.join(one.name for one in report.checks)}")
    return found or [done], report.clock_ahead_seconds


def _clock(ahead: float, url: str, target: Place) -> Finding:
    detail = f"{round(ahead):+d} s before {url}"
    todo = "set this machine's clock (NTP): times in checkpoints come from it"
    if target == "cluster":
        detail = f"this machine's: {detail}"
        todo = "set this machine's clock (NTP), and see to those of the nodes, which jobs go by"
    well = abs(ahead) <= MOST_CLOCK_SECONDS
    return Finding("clock", "ok" if well else "warning", detail, "" if well else todo)


def _absent_folder(url: str) -> Path | None:
    """The local folder at `url` if a run would make it, beside what is there."""
    folder = Path(unquote(url.removeprefix("file://")))
    if not url.startswith("file://") or folder.exists():
        return None
    return folder if os.access(folder.parent, os.W_OK | os.X_OK) else None


def cluster(kubectl: Ask, namespace: str, job: StatefulSparkJob | None) -> Iterator[Finding]:
    """The API server, the definitions, the operator, the namespace's accounts, and who may what."""
    try:
        answer = kubectl(["version", "-o", "json"])
    except FileNotFoundError:
        yield Finding("kubectl", "failed", "not found", "install kubectl, and put it on PATH")
        return
    if answer.returncode:
        todo = "check the kubeconfig and the context: kubectl config get-contexts"
        yield Finding("cluster", "failed", last_line(answer.stderr), todo)
        return
    yield _server(json.loads(answer.stdout)["serverVersion"]["gitVersion"])
    yield from _definitions(kubectl)
    yield _operator(kubectl)
    place = ["-n", namespace] if namespace else []
    yield from _rights("your rights", kubectl, USER_VERBS, place)
    account = (job.spec.service_account_name if job else "") or "spark"
    told = namespace or "the context's namespace"
    if kubectl(["get", "serviceaccount", account, *place, "-o", "name"]).returncode:
        todo = "add the namespace to jobs.namespaces of the chart, and upgrade the release"
        yield Finding("service account", "failed", f"{account} is not in {told}", todo)
    elif namespace:
        as_driver = [f"--as=system:serviceaccount:{namespace}:{account}", *place]
        yield from _rights("drivers' rights", kubectl, DRIVER_VERBS, as_driver)


def _server(version: str) -> Finding:
    found = re.match(r"v?(\d+)\.(\d+)", version)
    if found is None:
        return Finding("cluster", "unknown", f"Kubernetes {version}")
    if (int(found[1]), int(found[2])) >= LEAST_KUBERNETES:
        return Finding("cluster", "ok", f"Kubernetes {version}")
    least = "{}.{}".format(*LEAST_KUBERNETES)
    detail = f"Kubernetes {version}: {least} or later is needed"
    todo = f"upgrade the cluster: state servers are native sidecars, which are on from {least} on"
    return Finding("cluster", "failed", detail, todo)


def _definitions(kubectl: Ask) -> Iterator[Finding]:
    for kind, known in zip(KINDS, (job_crd(), snapshot_crd()), strict=True):
        answer = kubectl(["get", "crd", kind, "-o", "json"])
        if answer.returncode:
            absent = "NotFound" in answer.stderr
            todo = "install the chart: helm install moorage charts/moorage" if absent else ""
            outcome: Outcome = "failed" if absent else "unknown"
            yield Finding("definition", outcome, f"{kind}: {last_line(answer.stderr)}", todo)
            continue
        served = _served(json.loads(answer.stdout))
        told = f"{kind}: {', '.join(served)}"
        lacking = [
            f"{version}{field}"
            for version, fields in _served(known).items()
            for field in (sorted(fields - served[version]) if version in served else [""])
        ]
        if not lacking:
            yield Finding("definition", "ok", told)
            continue
        some = f"{', '.join(lacking[:_TOLD])}{' ...' if len(lacking) > _TOLD else ''}"
        detail = f"{told}; of another release, without {some}"
        todo = f"what a definition does not know is dropped or refused; {_UPGRADE}"
        yield Finding("definition", "warning", detail, todo)


def _served(definition: dict[str, Any]) -> dict[str, frozenset[str]]:
    """The fields of each version that is served."""
    return {
        version["name"]: frozenset(_fields(version.get("schema", {}).get("openAPIV3Schema", {})))
        for version in definition["spec"]["versions"]
        if version["served"]
    }


def _fields(node: dict[str, Any], path: str = "") -> Iterator[str]:
    for name, one in node.get("properties", {}).items():
        yield f"{path}.{name}"
        yield from _fields(one, f"{path}.{name}")
    for many in (node.get("items"), node.get("additionalProperties")):
        if isinstance(many, dict):
            yield from _fields(many, f"{path}[]")


def _operator(kubectl: Ask) -> Finding:
    answer = kubectl(["get", "deployments", "-A", "-l", OPERATORS, "-o", "json"])
    if answer.returncode:
        return Finding("operator", "unknown", last_line(answer.stderr), "ask who runs the cluster")
    found = json.loads(answer.stdout)["items"]
    if not found:
        todo = "install the chart: helm install moorage charts/moorage"
        return Finding("operator", "failed", "there is none in this cluster", todo)
    ready = [one for one in found if _ready(one)]
    names = [f"{one['metadata']['namespace']}/{one['metadata']['name']}" for one in found]
    if len(ready) < len(found):
        todo = f"kubectl describe deployment -n {found[0]['metadata']['namespace']}"
        return Finding("operator", "failed", f"not ready: {', '.join(names)}", todo)
    told = [
        f"{name} {_release(one) or ''}".rstrip() for name, one in zip(names, found, strict=True)
    ]
    detail = ", ".join(told)
    if all(_release(one) in {None, __version__} for one in found):
        return Finding("operator", "ok", detail)
    detail = f"{detail}; this command line is {__version__}"
    return Finding("operator", "warning", detail, f"take that release's moorage; or {_UPGRADE}")


def _release(deployment: dict[str, Any]) -> str | None:
    """By its image's tag where that is a version, else by what the chart says; None: unknown."""
    containers = deployment.get("spec", {}).get("template", {}).get("spec", {}).get("containers")
    image = containers[0].get("image", "") if containers else ""
    tag = image.partition("@")[0].rpartition("/")[2].partition(":")[2]
    try:
        Version(tag)
    except InvalidVersion:
        labels: dict[str, str] = deployment["metadata"].get("labels", {})
        return labels.get("app.kubernetes.io/version")
    return str(tag)


def _ready(deployment: dict[str, Any]) -> bool:
    return bool(deployment.get("status", {}).get("readyReplicas"))


def _rights(
    name: str, kubectl: Ask, verbs: Sequence[tuple[str, str]], more: Sequence[str]
) -> Iterator[Finding]:
    lacking = []
    for verb, kind in verbs:
        answer = kubectl(["auth", "can-i", verb, kind, *more])
        said = answer.stdout.strip().splitlines()
        if said and said[-1].startswith("yes"):
            continue
        if not said or not said[-1].startswith("no"):
            yield Finding(name, "unknown", last_line(answer.stderr), "ask who runs the cluster")
            return
        lacking.append(f"{verb} {kind}")
    if lacking:
        todo = "have a Role with them bound; the chart makes those of drivers (jobs.rbac.create)"
        yield Finding(name, "failed", f"not allowed: {', '.join(lacking)}", todo)
    else:
        yield Finding(name, "ok", ", ".join(f"{verb} {kind}" for verb, kind in verbs))
