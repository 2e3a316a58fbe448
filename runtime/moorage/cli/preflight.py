"""`moorage preflight`: whether a job could start, here and on a cluster, and what was not tried.

On this machine the job's program is imported and its restore point read; of a cluster it is asked
what the operator asks before an upgrade. Nothing that runs is touched.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer
import yaml

from moorage.cli.checks import checked_job, namespace_of, restore_url
from moorage.cli.exit_codes import ExitCode, exit_code
from moorage.cli.findings import Finding, Findings, show
from moorage.cli.kubectl import kubectl_of
from moorage.cli.output import complain
from moorage_api import ManifestError, StatefulSparkJob
from moorage_state.errors import MoorageError, UserError


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
    restore: Annotated[
        str | None,
        typer.Option(metavar="chk-N|NAME|PATH", help="Begin from this checkpoint or savepoint."),
    ] = None,
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
) -> None:
    """Try all that a start would before it takes hold of anything; beside a run, which goes on.

    Here the job file is imported and its graph built, and what would be restored is read. Of a
    cluster it is asked whether it would take the pods, and has room for them.
    """
    job, no_job = _job_for(manifest, "local", target)
    there, no_cluster = _job_for(manifest, "cluster", target)
    if job is None and there is None:
        checked_job(manifest, "local")  # it is for neither: this says all that is wrong
    failed: MoorageError | None = None
    if job is not None:
        try:
            _try_here(job, manifest, restore)
        except MoorageError as error:
            if there is None:
                raise
            # Such as of a store that only the cluster reaches: what that says is told as well.
            failed = error
            complain(f"tried on this machine: {error}")
    if target == "local":
        return
    if no_job:
        complain(f"not tried on this machine: {no_job}")
    if there is None:
        complain(f"not tried on a cluster: {no_cluster}")
        return
    place = _Place(context, namespace_of(there, namespace))
    sent = _Pod(restore, timeout) if pod else None
    _try_there(there, manifest, place, sent, must=job is None or pod or target == "cluster")
    if failed is not None:
        raise typer.Exit(exit_code(failed))


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


def _try_here(job: StatefulSparkJob, manifest: Path, restore: str | None) -> None:
    # Here, and not above: it brings Spark and Arrow.
    from moorage.driver.preflight import preflight as tried

    found = tried(job, manifest.absolute().parent, restore_url(restore))
    for warning in found.warnings:
        complain(warning)
    typer.echo(f"{job.name} could start: {found.text}")


def _try_there(
    job: StatefulSparkJob, manifest: Path, place: _Place, pod: _Pod | None, *, must: bool
) -> None:
    # Here, and not above: what the operator is made of, which nothing else here needs.
    from moorage.cli.cluster_preflight import NoCluster, cluster_findings, pod_finding

    path = pod.path(job) if pod is not None else ""
    document = yaml.safe_load(manifest.read_text(encoding="utf-8"))
    try:
        namespace = place.namespace or _default_namespace(place.context)
        ask = kubectl_of(place.context, namespace)
        looked = list(cluster_findings(ask, job, document, namespace))
        if pod is not None:
            looked.append(pod_finding(ask, job, namespace, path, pod.timeout))
    except NoCluster as error:
        if must:
            raise UserError(
                f"no cluster can be asked: {error}; see kubectl config get-contexts, or name one "
                f"by --context"
            ) from error
        complain(f"not tried on a cluster: {error}")
        return
    found = Findings(
        all(one.outcome != "failed" for one in looked),
        looked if pod is not None else [*looked, _NO_POD],
    )
    typer.echo(f"Asked of the cluster, for namespace {namespace}:")
    show(found)
    if not found.ok:
        raise typer.Exit(ExitCode.BAD_INPUT)


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
