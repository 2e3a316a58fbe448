"""`moorage preflight`: whether a job could start, here and on a cluster, and what was not tried.

On this machine the job's program is imported and its restore point read; of a cluster it is asked
what the operator asks before an upgrade. Nothing that runs is touched.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer
import yaml

from moorage.cli.checks import checked_job, namespace_of, restore_url
from moorage.cli.completion import RestorePoint
from moorage.cli.exit_codes import ExitCode, exit_code
from moorage.cli.findings import Finding, Findings, Outcome, show
from moorage.cli.kubectl import kubectl_of
from moorage.cli.output import Output, complain, print_document
from moorage_api import ManifestError, StatefulSparkJob
from moorage_state.errors import MoorageError, UserError


@dataclass(frozen=True, slots=True)
class Here:
    """What came out on this machine.

    Attributes:
        outcome: "unknown" where it was not tried.
        detail: what a start would begin with; else why it would not, or why it was not tried.
        restore: what it would begin from; None for nothing.
        dropped: uids whose state would be left behind.
    """

    outcome: Outcome
    detail: str
    operators: Sequence[str] = ()
    restore: str | None = None
    epoch: int | None = None
    dropped: Sequence[str] = ()
    warnings: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class There:
    """What came out on a cluster; `outcome` and `detail` as of `Here`."""

    outcome: Outcome
    detail: str = ""
    namespace: str | None = None
    findings: Sequence[Finding] = ()


@dataclass(frozen=True, slots=True)
class _Place:
    """Where on a cluster, as far as somebody said."""

    context: str | None
    namespace: str | None


@dataclass(frozen=True, slots=True)
class _Pod:
    """The pod of `--pod`."""

    restore: str | None
    timeout: float

    def path(self, job: StatefulSparkJob) -> str:
        """What it is to restore, by its URL; empty for what a start would choose."""
        if self.restore is not None and "://" not in self.restore:
            raise UserError(
                f"a pod is told by a URL what to restore: given={self.restore}; "
                f"kubectl moorage history {job.name} shows them, or leave out --pod"
            )
        return self.restore or ""


def preflight(
    manifest: Annotated[
        Path,
        typer.Argument(metavar="JOB.yaml", help="A StatefulSparkJob manifest.", show_default=False),
    ],
    *,
    restore: RestorePoint = None,
    target: Annotated[
        Literal["local", "cluster", "both"],
        typer.Option("--for", help="Where it is to run; both: as far as the manifest is for it."),
    ] = "both",
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Of the job (cluster).")
    ] = None,
    context: Annotated[
        str | None, typer.Option(metavar="NAME", help="The context of kubectl (cluster).")
    ] = None,
    pod: Annotated[
        bool,
        typer.Option(
            "--pod", help="Have a short pod of the image try it as well (cluster); it is deleted."
        ),
    ] = False,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, help="How long to wait for that pod.")
    ] = 600.0,
    output: Output = "table",
) -> None:
    """Try all that a start would before it takes hold of anything; beside a run, which goes on.

    Here the job file is imported and its graph built, and what would be restored is read. Of a
    cluster it is asked whether it would take the pods, and has room for them.
    """
    try:
        job, no_job = _job_for(manifest, "local", target)
        there, no_cluster = _job_for(manifest, "cluster", target)
        if job is None and there is None:
            checked_job(manifest, "local")  # it is for neither: this says all that is wrong
    except ManifestError as error:
        if output == "table":
            raise
        _tell_wrong(error, target, output)
        raise typer.Exit(exit_code(error)) from None
    sent = _Pod(restore, timeout) if pod else None
    if sent is not None and there is not None:
        sent.path(there)
    local, refused = _try_here(job, no_job, manifest, restore)
    _tell_here(job, local, output, others=there is not None)
    must = job is None or pod or target == "cluster"
    cluster, no_answer = There("unknown", no_cluster), None
    if there is not None:
        place = _Place(context, namespace_of(there, namespace))
        cluster, no_answer = _try_there(there, manifest, place, sent, must=must)
    if target != "local" and no_answer is None:
        _tell_there(cluster, output)
    if output != "table":
        ok = "failed" not in {local.outcome, cluster.outcome} and no_answer is None
        name = (job or there or checked_job(manifest, "local")).name
        fields = {"job": name, "ok": ok, "local": local, "cluster": cluster, "problems": ()}
        print_document("preflight", fields, output)
    _end(refused, cluster, no_answer, told=there is not None)


def _tell_wrong(error: ManifestError, target: str, output: Output) -> None:
    """Print what is wrong with a manifest, as `validate` does, in the document of all others."""
    where = {
        place: kind("failed", str(error.problems[0]))
        if target in (place, "both")
        else kind("unknown", f"--for {target}")
        for place, kind in (("local", Here), ("cluster", There))
    }
    fields = {"job": None, "ok": False, **where, "problems": error.problems}
    print_document("preflight", fields, output)


def _end(
    refused: MoorageError | None, cluster: There, no_answer: MoorageError | None, *, told: bool
) -> None:
    """Give the status of what went wrong; `told`: what was refused here was said before."""
    if cluster.outcome == "failed":
        raise typer.Exit(ExitCode.BAD_INPUT)
    if no_answer is not None:
        raise no_answer
    if refused is not None and not told:
        raise refused
    if refused is not None:
        raise typer.Exit(exit_code(refused))


def _job_for(
    manifest: Path, place: Literal["local", "cluster"], target: str
) -> tuple[StatefulSparkJob | None, str]:
    """The job, where the manifest is one for that place; or why it is not tried there."""
    if target not in (place, "both"):
        return None, f"--for {target}"
    try:
        return checked_job(manifest, place), ""
    except ManifestError as error:
        if target == place:
            raise
        return None, str(error.problems[0])


def _try_here(
    job: StatefulSparkJob | None, no_job: str, manifest: Path, restore: str | None
) -> tuple[Here, MoorageError | None]:
    if job is None:
        return Here("unknown", no_job), None
    # Here, and not above: it brings Spark and Arrow.
    from moorage.driver.preflight import preflight as tried

    try:
        found = tried(job, manifest.absolute().parent, restore_url(restore))
    except MoorageError as error:
        return Here("failed", str(error)), error
    kept = (found.operators, found.restore, found.epoch, found.unclaimed, found.warnings)
    return Here("ok", found.text, *kept), None


def _tell_here(job: StatefulSparkJob | None, found: Here, output: Output, *, others: bool) -> None:
    """Say what came out; where others are asked as well, also what went wrong."""
    for warning in found.warnings:
        complain(warning)
    if job is None:
        complain(f"not tried on this machine: {found.detail}")
    elif found.outcome == "ok" and output == "table":
        typer.echo(f"{job.name} could start: {found.detail}")
    elif found.outcome == "failed" and others:
        # Such as of a store that only the cluster reaches: what that says is told as well.
        complain(f"tried on this machine: {found.detail}")


def _try_there(
    job: StatefulSparkJob, manifest: Path, place: _Place, pod: _Pod | None, *, must: bool
) -> tuple[There, MoorageError | None]:
    # Here, and not above: what the operator is made of, which nothing else here needs.
    from moorage.cli.cluster_preflight import NoCluster, cluster_findings, pod_finding

    document = yaml.safe_load(manifest.read_text(encoding="utf-8"))
    try:
        namespace = place.namespace or _default_namespace(place.context)
        ask = kubectl_of(place.context, namespace)
        looked = list(cluster_findings(ask, job, document, namespace))
        if pod is not None:
            looked.append(pod_finding(ask, job, namespace, pod.path(job), pod.timeout))
    except NoCluster as error:
        nobody = UserError(
            f"no cluster can be asked: {error}; see kubectl config get-contexts, or name one "
            f"by --context"
        )
        return There("unknown", str(error)), nobody if must else None
    if pod is None:
        looked.append(_NO_POD)
    failed = any(one.outcome == "failed" for one in looked)
    return There("failed" if failed else "ok", "", namespace, looked), None


def _tell_there(found: There, output: Output) -> None:
    if not found.findings:
        complain(f"not tried on a cluster: {found.detail}")
    elif output == "table":
        typer.echo(f"Asked of the cluster, for namespace {found.namespace}:")
        show(Findings(found.outcome != "failed", found.findings))


_NO_POD = Finding(
    "image and job",
    "unknown",
    "not tried on the cluster: image, job file, restore point and sinks",
    "--pod sends a short pod of the image, as spec.upgrade.preflight does",
)


def _default_namespace(context: str | None) -> str:
    """That of kubectl's context."""
    try:
        answer = kubectl_of(context)(["config", "view", "--minify", "-o", "jsonpath={..namespace}"])
    except FileNotFoundError:
        return "default"  # whoever is asked next says that kubectl is not there
    return answer.stdout.strip() or "default"
