"""`moorage uninstall`: takes Moorage off a cluster, in the order in which nothing is lost.

Jobs and snapshots go while the operator is still there: it takes final savepoints and lets data be.
The release goes by Helm, whose hook sees to the finalizers of what stays; definitions go last.
"""

import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

import typer

from moorage.cli.cluster_jobs import Context
from moorage.cli.kubectl import (
    JOBS,
    OPERATORS,
    SNAPSHOTS,
    Cluster,
    Json,
    Refused,
    kubectl_of,
    last_line,
)
from moorage.cli.output import Output, complain, print_document, print_table, stoppable
from moorage_api.fleet import with_defaults
from moorage_state.errors import UserError

_HELM_SECONDS = 600.0
_ACCOUNTS = (
    "serviceaccounts",
    "roles.rbac.authorization.k8s.io",
    "rolebindings.rbac.authorization.k8s.io",
)
Helm = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to go beside the operator."""

    release: str
    namespace: str
    jobs: bool = False
    definitions: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """What is there, each as kind, namespace and name."""

    jobs: Sequence[Json] = ()
    snapshots: Sequence[Json] = ()
    kept: Sequence[Json] = field(default=())
    """Accounts of drivers and Leases, which the release leaves behind."""
    release: bool = True
    """Whether the release is there: what was begun before may have uninstalled it."""


def uninstall(
    *,
    release: Annotated[str, typer.Option(metavar="NAME", help="The release's name.")] = "moorage",
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Where the release is.")
    ] = "moorage",
    context: Context = None,
    jobs: Annotated[
        bool, typer.Option("--jobs", help="End all jobs of the cluster first, and delete them.")
    ] = False,
    definitions: Annotated[
        bool,
        typer.Option("--definitions", help="Delete the definitions, too, and what jobs needed."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, help="For the jobs' final savepoints.")
    ] = 1800.0,
    output: Output = "table",
) -> None:
    """Take the operator off a cluster; jobs go on, and what is stored stays."""
    if output != "table" and not yes:
        raise UserError(f"nobody is asked where a program reads: output={output}; add --yes")
    asked = Asked(release, namespace, jobs, definitions)
    cluster, helm = Cluster(kubectl_of(context)), helm_of(context)
    try:
        found = look(cluster, asked)
        found = replace(found, release=_is_installed(cluster, helm, asked))
        rows = list(plan(asked, found))
        if output == "table":
            print_table(("WHAT", "NAMESPACE", "NAME", "WHAT BECOMES OF IT"), rows)
        if not yes:
            typer.confirm("Go on?", abort=True)
        with stoppable("what was deleted is gone; the same command goes on"):
            carry_out(cluster, helm, asked, found, timeout)
        if output != "table":
            names = ("what", "namespace", "name", "outcome")
            objects = [dict(zip(names, row, strict=True)) for row in rows]
            print_document("uninstall", {"done": True, "objects": objects}, output)
    except Refused as error:
        raise UserError(str(error)) from error


def helm_of(context: str | None) -> Helm:
    """Calls the user's helm there."""
    where = [f"--kube-context={context}"] if context else []

    def ask(arguments: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        command = ["helm", *arguments, *where]
        try:
            return subprocess.run(
                command, capture_output=True, text=True, timeout=_HELM_SECONDS, check=False
            )
        except FileNotFoundError:
            raise Refused("helm is not installed: the release is its; put it on PATH") from None
        except subprocess.TimeoutExpired:
            raise Refused(f"helm did not end in {_HELM_SECONDS:g} s; see helm status") from None

    return ask


def look(cluster: Cluster, asked: Asked) -> Found:
    """What there is of Moorage in the cluster.

    Raises Refused: what is asked for would lose something.
    """
    jobs = _listed(cluster, JOBS)
    if asked.definitions and jobs and not asked.jobs:
        raise Refused(
            f"with the definitions all jobs would go, without a final savepoint: jobs={len(jobs)}; "
            f"end them first (--jobs), or leave out --definitions"
        )
    snapshots = _listed(cluster, SNAPSHOTS) if asked.definitions else []
    kept: list[Json] = []
    if asked.definitions:
        mine = f"{OPERATORS},app.kubernetes.io/instance={asked.release}"
        for kind in _ACCOUNTS:
            found = cluster.list(kind, mine, everywhere=True)
            kept += [one for one in found if _namespace(one) != asked.namespace]
        operators = cluster.list("deployments.apps", mine, everywhere=True)
        ours = {(_namespace(one), f"{_name(one)}-leader") for one in operators}
        leases = cluster.list("leases.coordination.k8s.io", everywhere=True)
        kept += [one for one in leases if (_namespace(one), _name(one)) in ours]
    return Found(jobs, snapshots, kept)


def plan(asked: Asked, found: Found) -> Iterator[tuple[str, str, str, str]]:
    """What becomes of each thing, a row each, in the order in which it is done."""
    for one in found.jobs:
        yield "job", _namespace(one), _name(one), _end_of(one) if asked.jobs else "goes on"
    for one in found.snapshots:
        yield "snapshot", _namespace(one), _name(one), "its object is deleted, its data stay"
    gone = "is uninstalled by helm" if found.release else "is gone already"
    yield "operator", asked.namespace, asked.release, gone
    if not asked.definitions:
        yield "definitions", "", "", "stay, with all jobs and snapshots"
        return
    for one in found.kept:
        yield one["kind"].lower(), _namespace(one), _name(one), "is deleted"
    for kind in (JOBS, SNAPSHOTS):
        yield "definition", "", kind, "is deleted"


def carry_out(cluster: Cluster, helm: Helm, asked: Asked, found: Found, timeout: float) -> None:
    """Do it. Raises Refused: a step did not succeed; those before it are done."""
    if asked.jobs and found.jobs:
        for one in found.jobs:
            # With another policy the operator would delete its checkpoints.
            cluster.patch(JOBS, _name(one), _retained(one), _namespace(one))
            cluster.delete(JOBS, _name(one), _namespace(one))
        cluster.wait_until_gone(JOBS, timeout)
    # Jobs that ended have left their final ones.
    snapshots = _listed(cluster, SNAPSHOTS) if asked.definitions else []
    for one in snapshots:
        # With another policy the operator would delete what is stored.
        change = {"spec": {"deletionPolicy": "Retain"}}
        cluster.patch(SNAPSHOTS, _name(one), change, _namespace(one))
        cluster.delete(SNAPSHOTS, _name(one), _namespace(one))
    if snapshots:
        cluster.wait_until_gone(SNAPSHOTS, timeout)
    if found.release:
        complain(_said(helm(["uninstall", asked.release, f"--namespace={asked.namespace}"])))
    for one in found.kept:
        cluster.delete(one["kind"].lower(), _name(one), _namespace(one))
    if asked.definitions:
        for kind in (JOBS, SNAPSHOTS):
            cluster.delete("customresourcedefinitions", kind)


def _end_of(job: Json) -> str:
    """What becomes of a job that is deleted: the operator can take a last snapshot of few."""
    spec, attempt = job.get("spec", {}), job.get("status", {}).get("attempt") or {}
    last = _deletion(job).get("finalSnapshot", "Savepoint")
    if not attempt.get("runningSince") or attempt.get("outcome"):
        return "does not run, and is deleted without a final snapshot; its checkpoints stay"
    notes = job["metadata"].get("annotations") or {}
    if last == "None" or notes.get("moorage.dev/skip-final-savepoint") == "true":
        return "ends without a final snapshot, as it says, and is deleted; its checkpoints stay"
    if last == "Checkpoint" or not spec.get("state", {}).get("savepointDir"):
        return "ends with a final checkpoint, and is deleted"
    return "ends with its final savepoint, and is deleted"


def _retained(job: Json) -> Json:
    """The change of a job with which its checkpoints stay when it is deleted."""
    # Retain is the definition's default: any profile that says Delete would win.
    return {"spec": {"deletion": {**_deletion(job), "policy": "Retain"}, "profile": "none"}}


def _deletion(job: Json) -> Json:
    """What a job's spec says of its deletion, with the profile that it goes by."""
    profile = job.get("status", {}).get("profile") or {}
    filled = with_defaults(job.get("spec", {}), profile.get("values", {}))
    found: Json = filled.get("deletion", {})
    return found


def _is_installed(cluster: Cluster, helm: Helm, asked: Asked) -> bool:
    """Whether helm has the release; without it only what an earlier run left is to be done.

    Raises Refused: it has not, and an operator is there, or nothing but it was to go.
    """
    answer = helm(["status", asked.release, f"--namespace={asked.namespace}"])
    gone = bool(answer.returncode) and "not found" in answer.stderr and asked.definitions
    if gone and not cluster.list("deployments.apps", OPERATORS, everywhere=True):
        return False
    _said(answer)
    return True


def _listed(cluster: Cluster, kind: str) -> list[Json]:
    """All of a kind of ours; none where its definition is gone already."""
    try:
        return cluster.list(kind, everywhere=True)
    except Refused as error:
        if "doesn't have a resource type" in str(error):
            return []
        raise


def _said(answer: "subprocess.CompletedProcess[str]") -> str:
    """Helm's last line. Raises Refused: it did not succeed."""
    if answer.returncode:
        raise Refused(last_line(answer.stderr))
    return last_line(answer.stdout)


def _namespace(found: Json) -> str:
    return str(found["metadata"].get("namespace", ""))


def _name(found: Json) -> str:
    return str(found["metadata"]["name"])
