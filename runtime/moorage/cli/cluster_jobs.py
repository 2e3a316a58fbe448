"""`kubectl moorage`: jobs on a cluster, as a plugin of kubectl.

What is ordered is what a person would write by hand: a snapshot object, a field of the spec.
Waiting looks at the objects once a second; Ctrl-C ends the waiting, not what was ordered.
"""

import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Literal, NoReturn

import typer

from moorage.cli.cluster_status import AllJobs, OneJob, age_of, is_as_wanted, name_of
from moorage.cli.completion import job_names, snapshot_names
from moorage.cli.exit_codes import ExitCode
from moorage.cli.kubectl import (
    JOBS,
    SNAPSHOTS,
    Cluster,
    Json,
    Refused,
    condition,
    forward_of,
    kubectl_of,
)
from moorage.cli.output import (
    Output,
    SavepointFound,
    complain,
    print_document,
    print_pairs,
    print_savepoint,
    print_table,
    stoppable,
)
from moorage.cli.watch import Watch, show
from moorage.texts import size_text
from moorage_api import API_VERSION
from moorage_state.stores import store_url
from moorage_state.stores.addresses import child

_TRIES = 5
"""To change a job that is changed by others meanwhile."""

Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="As kubectl has it.", show_default=False)
]
Context = Annotated[
    str | None,
    typer.Option("--context", metavar="NAME", help="As kubectl has it.", show_default=False),
]
JobName = Annotated[
    str,
    typer.Argument(metavar="JOB", help="The name of a StatefulSparkJob.", autocompletion=job_names),
]
Timeout = Annotated[
    float, typer.Option(metavar="SECONDS", min=1, help="How long to wait; 0.5 h by default.")
]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for it, or order it alone.")]

plugin = typer.Typer(
    name="kubectl moorage",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Stateful Spark jobs of a cluster.",
)


def job_outcome(found: Json, settled: Callable[[Json], bool]) -> str | None:
    """What a job is doing; None once what was ordered is done, or waits until it is resumed.

    Raises Refused: it can go no further without a person.
    """
    status = found.get("status", {})
    seen = status.get("observedGeneration") == found["metadata"]["generation"]
    doing = condition(found, "Progressing")
    at_work = doing.get("status") == "True"
    if seen:
        if settled(found) and doing.get("status") == "False":
            return None
        # What is under way ends in any case: a job beyond its limits can be suspended, for one.
        for kind, bad in (("Blocked", "True"), *([] if at_work else [("SpecValid", "False")])):
            now = condition(found, kind)
            if now.get("status") == bad:
                raise Refused(f"{kind}: {now['reason']}: {now['message']}")
        if status.get("phase") == "Failed":
            raise Refused(f"the job has failed: {status.get('message', '')}")
        if _sleeps(found):
            return None
    reason = doing.get("reason") if at_work else _waits_for(found)
    return " ".join(word for word in (status.get("phase") or "Pending", reason) if word)


def _sleeps(found: Json) -> bool:
    """Whether nothing runs, and nothing is to run until the job is resumed."""
    suspended = found["spec"].get("desiredState") == "Suspended"
    return suspended and found.get("status", {}).get("phase") in ("Suspended", "Finished")


def _waits_for(found: Json) -> str:
    """Why nothing is done about what was ordered, such as a quota; empty if nobody says."""
    now = condition(found, "Reconciled")
    if now.get("status") != "False":
        return ""
    return ": ".join(text for text in (now["reason"], now["message"]) if text)


# -- commands --------------------------------------------------------------------------------


def _cluster(namespace: str | None, context: str | None) -> Cluster:
    return Cluster(kubectl_of(context, namespace), forward=forward_of(context, namespace))


def _newest_first(snapshots: Sequence[Json]) -> list[Json]:
    return sorted(snapshots, key=lambda one: one["metadata"]["creationTimestamp"], reverse=True)


@plugin.command()
def status(
    job: Annotated[
        str | None,
        typer.Argument(metavar="[JOB]", help="All jobs without it.", autocompletion=job_names),
    ] = None,
    *,
    namespace: Namespace = None,
    context: Context = None,
    watch: Watch = False,
    output: Output = "table",
) -> None:
    """A job, its driver, executors, subtasks, and what is wrong; or all jobs, a line each."""
    cluster = _cluster(namespace, context)
    if job is None:
        show("status", AllJobs(cluster).look, output, watch=watch)
        return
    with OneJob(cluster, job) as one:
        show("status", one.look, output, watch=watch)


@plugin.command()
def history(
    job: JobName, *, namespace: Namespace = None, context: Context = None, output: Output = "table"
) -> None:
    """The snapshots of a job, newest first, with what can be restored by which name."""
    cluster, now = _cluster(namespace, context), datetime.now(UTC)
    found = _newest_first(cluster.list(SNAPSHOTS, f"moorage.dev/job={job}"))
    if not found:
        cluster.get(JOBS, job)  # a name that is misspelt has none either
    if output != "table":
        print_document("history", {"snapshots": [_entry(one) for one in found]}, output)
        return
    if not found:
        complain(f"no snapshot yet: kubectl moorage savepoint {job} NAME takes one")
        return
    rows = []
    for one in map(_entry, found):
        size = size_text(one["sizeBytes"]) if one["sizeBytes"] else None
        age = age_of(one["completedAt"] or one["createdAt"], now)
        said = one["message"] or one["path"]
        rows.append((one["name"], one["type"], one["trigger"], one["state"], size, age, said))
    print_table(("NAME", "TYPE", "TRIGGER", "STATE", "SIZE", "AGE", "PATH OR REASON"), rows)


def _entry(snapshot: Json) -> Json:
    status, spec = snapshot.get("status", {}), snapshot["spec"]
    return {
        "name": name_of(snapshot),
        "type": spec.get("type", "Savepoint"),
        "trigger": snapshot["metadata"].get("labels", {}).get("moorage.dev/trigger", ""),
        "state": status.get("state") or "Pending",
        "path": status.get("path", ""),
        "checkpointId": status.get("checkpointId"),
        "sizeBytes": status.get("sizeBytes"),
        "createdAt": snapshot["metadata"]["creationTimestamp"],
        "completedAt": status.get("completedAt"),
        "message": "" if status.get("state") == "Completed" else status.get("message", ""),
    }


@plugin.command()
def revisions(
    job: JobName, *, namespace: Namespace = None, context: Context = None, output: Output = "table"
) -> None:
    """The versions of a job, newest first: what changed, and what became of each."""
    cluster, now = _cluster(namespace, context), datetime.now(UTC)
    found = cluster.get(JOBS, job).get("status", {}).get("revisions") or []
    found = list(reversed(found))
    if output != "table":
        print_document("revisions", {"revisions": found}, output)
        return
    rows = []
    for one in found:
        said = ", ".join(one.get("changed") or ())
        why = one.get("message")
        text = f"{said} ({why})" if said and why else said or why
        age = age_of(one["at"], now)
        rows.append((one["name"], age, one.get("attempt") or None, one.get("outcome"), text))
    print_table(("NAME", "BEGAN", "DRIVER", "OUTCOME", "CHANGED"), rows)


@plugin.command()
def savepoint(
    job: JobName,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its directory's name, used once.")],
    *,
    namespace: Namespace = None,
    context: Context = None,
    wait: Wait = True,
    timeout: Timeout = 1800.0,
    output: Output = "table",
) -> None:
    """Take a savepoint of a job, also of one that sleeps; prints its address."""
    cluster = _cluster(namespace, context)
    state = cluster.get(JOBS, job)["spec"]["state"]
    made = cluster.create(
        {
            "apiVersion": API_VERSION,
            "kind": "StatefulSparkSnapshot",
            "metadata": {"name": f"{job}-{name}", "labels": {"moorage.dev/job": job}},
            "spec": {"jobRef": {"name": job}, "type": "Savepoint", "name": name},
        }
    )
    told = f"kubectl moorage history {job}"
    if not wait:
        complain(f"ordered: job={job} snapshot={name_of(made)}; {told}")
        where = (
            child(_reach(state, state["savepointDir"]), name) if "savepointDir" in state else None
        )
        print_savepoint(
            SavepointFound(job, done=False, name=name, url=where, snapshot=name_of(made)), output
        )
        return
    with stoppable(f"the savepoint goes on: {told}"):
        made = cluster.wait(SNAPSHOTS, name_of(made), timeout, _snapshot_outcome)
    status = made["status"]
    found = SavepointFound(
        job,
        done=True,
        name=name,
        url=status.get("path"),
        snapshot=name_of(made),
        checkpoint_id=status.get("checkpointId"),
        epoch=status.get("epoch"),
        bytes_total=status.get("sizeBytes"),
        completed_at=status.get("completedAt"),
    )
    print_savepoint(found, output)


def _snapshot_outcome(found: Json) -> str | None:
    status = found.get("status", {})
    state = status.get("state") or "Pending"
    if state in ("Failed", "Abandoned"):
        raise Refused(f"the savepoint came to nothing: {state}: {status.get('message', '')}")
    if state == "Completed":
        return None
    why = condition(found, "Complete")
    return ": ".join(text for text in (state, why.get("reason"), why.get("message")) if text)


@plugin.command()
def rescale(
    job: JobName,
    parallelism: Annotated[int, typer.Argument(metavar="PARALLELISM", min=1)],
    *,
    namespace: Namespace = None,
    context: Context = None,
    wait: Wait = True,
    timeout: Timeout = 1800.0,
    output: Output = "table",
) -> None:
    """Give a job another number of subtasks, and wait until it runs with them."""

    def settled(found: Json) -> bool:
        scaling = found["status"].get("scaling") or {}
        return scaling.get("observedParallelism") == parallelism and _is_ready(found)

    change = {"spec": {"scaling": {"parallelism": parallelism}}}
    cluster = _cluster(namespace, context)
    found = _order(cluster, job, change, settled, wait=wait, timeout=timeout)
    _tell("rescale", found, output, done=wait and _begun(found))


@plugin.command()
def restore(
    job: JobName,
    source: Annotated[
        str,
        typer.Argument(
            metavar="SNAPSHOT|chk-N|URL",
            help="See kubectl moorage history JOB.",
            autocompletion=snapshot_names,
        ),
    ],
    *,
    namespace: Namespace = None,
    context: Context = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    allow_non_restored_state: Annotated[
        bool, typer.Option(help="State of operators that the job no longer has may be left.")
    ] = False,
    wait: Wait = True,
    timeout: Timeout = 1800.0,
    output: Output = "table",
) -> None:
    """Go back to a snapshot of the job, or to any other by its address."""
    if output != "table" and not yes:
        raise Refused(f"nobody is asked where a program reads: output={output}; add --yes")
    cluster = _cluster(namespace, context)
    found = cluster.get(JOBS, job)
    chosen = _restore_of(cluster, found, source)
    if not yes:
        what = chosen.get("snapshotName") or chosen["path"]
        typer.confirm(f"{job} goes back to {what}; what it did since is undone. Go on?", abort=True)
    nonce = 1 + max(found["spec"].get("restore", {}).get("nonce", 0), _nonce_followed(found))
    chosen |= {"nonce": nonce, "allowNonRestoredState": allow_non_restored_state}
    chosen |= {"claimMode": "NoClaim"}  # what a manifest claims is another one

    def settled(seen: Json) -> bool:
        return _nonce_followed(seen) >= nonce and _is_ready(seen)

    change = {"spec": {"restore": chosen}}
    now = _order(cluster, job, change, settled, wait=wait, timeout=timeout, shown=found)
    _tell("restore", now, output, done=wait and _begun(now))


def _nonce_followed(job: Json) -> int:
    """The restore.nonce that was followed last; a manifest that was applied since may have less."""
    return int(job.get("status", {}).get("reconciliation", {}).get("restoreNonce", 0))


def _restore_of(cluster: Cluster, job: Json, source: str) -> Json:
    """The fields of `spec.restore` that stand for what a person wrote."""
    if "://" in source:
        return {"mode": "Path", "path": source, "snapshotName": ""}
    if source.startswith("chk-") and source[4:].isdigit():
        state = job["spec"]["state"]
        folder = _reach(state, state["checkpointDir"])
        return {"mode": "Path", "path": child(folder, source), "snapshotName": ""}
    for found in _named(cluster, name_of(job), source):
        name, state = name_of(found), _entry(found)["state"]
        if state != "Completed":
            raise Refused(f"snapshot {name} is {state}; choose one that is Completed")
        return {"mode": "Snapshot", "snapshotName": name, "path": ""}
    raise Refused(f"there is no snapshot {source}: kubectl moorage history {name_of(job)}")


def _named(cluster: Cluster, job: str, source: str) -> list[Json]:
    """The snapshots of a job that a person may mean, the likeliest first."""
    # Others' may have a name that begins with this job's, such as final of JOB-eu.
    found = _newest_first(cluster.list(SNAPSHOTS, f"moorage.dev/job={job}"))
    mine = [one for one in found if one["spec"]["jobRef"]["name"] == job]
    named = [one for name in (source, f"{job}-{source}") for one in mine if name_of(one) == name]
    return named + [one for one in mine if one["spec"].get("name") == source]


def _reach(state: Json, url: str) -> str:
    """The whole address of a directory of a job, with how the job reaches S3."""
    s3 = state.get("s3", {})
    endpoint, region = s3.get("endpoint"), s3.get("region")
    return store_url(url, endpoint, region, path_style=s3.get("pathStyle", False))


Desired = Literal["Running", "Suspended"]


def _desiring(name: str, state: Desired, told: str) -> None:
    """Make a command that has a job be so."""

    def settled(found: Json) -> bool:
        return is_as_wanted(found["status"].get("phase"), state)

    @plugin.command(name, help=told)
    def command(
        job: JobName,
        *,
        namespace: Namespace = None,
        context: Context = None,
        wait: Wait = True,
        timeout: Timeout = 1800.0,
        output: Output = "table",
    ) -> None:
        change = {"spec": {"desiredState": state}}
        cluster = _cluster(namespace, context)
        found = _order(cluster, job, change, settled, wait=wait, timeout=timeout)
        _tell(name, found, output, done=wait)


_desiring("suspend", "Suspended", "Stop a job with its state kept; see resume.")
_desiring("resume", "Running", "Let a suspended job go on from there.")


def _order(
    cluster: Cluster,
    job: str,
    change: Json,
    settled: Callable[[Json], bool],
    *,
    wait: bool,
    timeout: float,
    shown: Json | None = None,
) -> Json:
    """Change the spec of a job, and wait until it is so; what it was when this was over.

    Args:
        shown: the job as it was when this was chosen, where that goes by its `spec.restore`.
    """
    if shown is None:
        now = cluster.patch(JOBS, job, change)
    else:
        now = _patched_as_shown(cluster, shown, change)
    told = f"kubectl moorage status {job}"
    if not wait:
        complain(f"ordered: job={job}; {told}")
        return now
    with stoppable(f"what was ordered goes on: {told}"):
        return cluster.wait(JOBS, job, timeout, lambda found: job_outcome(found, settled))


def _patched_as_shown(cluster: Cluster, shown: Json, change: Json) -> Json:
    """Change a job whose `spec.restore` nobody has changed since it was shown.

    Raises Refused: somebody has, and another nonce would be the next one.
    """
    for _ in range(_TRIES):
        now = cluster.get(JOBS, name_of(shown))
        if now["spec"].get("restore") != shown["spec"].get("restore"):
            raise Refused(
                f"the job was told meanwhile to restore something else: {name_of(shown)}; "
                f"look (kubectl moorage status {name_of(shown)}), and ask again"
            )
        version = {"metadata": {"resourceVersion": now["metadata"]["resourceVersion"]}}
        try:
            return cluster.patch(JOBS, name_of(shown), change | version)
        except Refused as error:
            # Of a job that runs the operator changes the status each second or so.
            if "(Conflict)" not in str(error):
                raise
    raise Refused(f"the job is changed all the time: {name_of(shown)}; ask again")


def _begun(found: Json) -> bool:
    """Whether what was ordered was followed; of a job that sleeps it is told when it will be."""
    if not _sleeps(found):
        return True
    name = name_of(found)
    complain(f"ordered: the job is suspended, and follows it after kubectl moorage resume {name}")
    return False


def _tell(command: str, found: Json, output: Output, *, done: bool) -> None:
    """Print what came of an order."""
    now = found.get("status", {})
    fields = {
        "job": name_of(found),
        "phase": now.get("phase"),
        "subtasks": (now.get("scaling") or {}).get("observedParallelism"),
    }
    if output != "table":
        print_document(command, {"done": done} | fields, output)
    elif done:
        print_pairs(fields)


def _is_ready(found: Json) -> bool:
    return condition(found, "Ready").get("status") == "True"


def main() -> NoReturn:
    """The console script `kubectl-moorage`."""
    sys.exit(run_plugin(sys.argv[1:]))


def run_plugin(arguments: Sequence[str]) -> int:
    """Run the plugin and return its exit status; every error has been printed."""
    try:
        plugin(list(arguments), prog_name=plugin.info.name, standalone_mode=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else ExitCode.INTERNAL
    except Refused as error:
        complain(str(error))
        return ExitCode.BAD_INPUT
    return ExitCode.OK
