"""What `kubectl moorage status` shows: a job and its pods, and what its driver says of subtasks.

Decides what of a job's `.status` and pods a person sees, and how its driver is reached: through
kubectl, with the token that only reads. What the driver does not say is missing, with the reason.
"""

import base64
import binascii
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Self

import msgspec
from rich.text import Text

from moorage.cli.job_tree import (
    DriverBranch,
    JobTree,
    Worker,
    by_place,
    drawn,
    run_facts,
    run_troubles,
    workers_at,
)
from moorage.cli.kubectl import JOBS, Cluster, Json, Refused
from moorage.cli.output import table_lines
from moorage.cli.watch import Shown
from moorage.driver.run_status import RunStatus
from moorage.driver.views import SubtaskView
from moorage.queryable import EndpointConnection
from moorage.texts import since_text, size_text, watermark_text
from moorage_api.driver import ENDPOINT_PORT, STATUS_PATH, certificate_name
from moorage_state.errors import MoorageError, UserError
from moorage_state.formats import UNREADABLE
from moorage_state.server.addresses import split_address

_RUNS = ("Running", "Stable")
_DRIVER_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class ClusterLook:
    """A job and what belongs to it, as the cluster and its driver have it.

    Attributes:
        run: what its driver says; None where it could not be asked.
        problem: why not.
    """

    job: Json
    pods: Sequence[Json] = ()
    run: RunStatus | None = None
    problem: str = ""

    def to_json(self) -> Json:
        """For programs; `run` is that of `moorage status`."""
        status = self.job.get("status", {})
        return {
            "name": name_of(self.job),
            "namespace": self.job["metadata"]["namespace"],
            "desired": self.job["spec"].get("desiredState", "Running"),
            "phase": status.get("phase"),
            "message": status.get("message", ""),
            "job": status.get("job", {}),
            "scaling": status.get("scaling", {}),
            "snapshots": status.get("snapshots", {}),
            "restarts": status.get("restarts", {}),
            "conditions": status.get("conditions", []),
            "pods": [{"name": name_of(pod), **_pod(pod)} for pod in self.pods],
            "run": self.run,
            "problem": self.problem,
        }


def status_in(answer: bytes) -> RunStatus:
    """What a driver's answer says. Raises `Refused`: it cannot be read."""
    try:
        return msgspec.json.decode(answer, type=RunStatus)
    except UNREADABLE as error:
        raise Refused(f"the driver, of another release, says it otherwise: {error}") from error


class DriverDoor:
    """Asks a job's driver, over one connection that is made anew when it is lost."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._open: ExitStack | None = None
        self._connection: EndpointConnection | None = None

    def status(self, job: Json) -> RunStatus:
        """What the driver says.

        Raises:
            Refused: it cannot be reached, or does not say; the text says why.
        """
        if self._connection is not None:
            with suppress(Refused):  # its pod may be another one by now
                return self._asked(job)
        return self._asked(job)

    def _asked(self, job: Json) -> RunStatus:
        try:
            connection = self._connection or self._connected(job)
            answer = connection.call("GET", STATUS_PATH)
            return status_in(answer)
        except Refused:
            self.close()
            raise
        except MoorageError as error:
            self.close()
            old = isinstance(error, UserError) and "no such path" in str(error)
            why = "the driver is of an earlier release, which does not say" if old else str(error)
            raise Refused(why) from error

    def close(self) -> None:
        """End the connection."""
        if self._open is not None:
            self._open.close()
        self._open = self._connection = None

    def _connected(self, job: Json) -> EndpointConnection:
        name, space = name_of(job), job["metadata"]["namespace"]
        token = self._secret(f"{name}-scrape", "token")
        tls = (job["spec"].get("security") or {}).get("tls") or {}
        trusted = self._secret(tls["secretName"], "ca.crt") if tls else None
        self._open = ExitStack()
        port = self._open.enter_context(self._cluster.forward(f"{name}-driver", ENDPOINT_PORT))
        address = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
        server = certificate_name(name, space) if tls else None
        connection = EndpointConnection(
            address, token, None, server, _DRIVER_SECONDS, ca_data=trusted
        )
        self._open.callback(connection.close)
        self._connection = connection
        return connection

    def _secret(self, name: str, key: str) -> str:
        data = self._cluster.get("secrets", name).get("data") or {}
        with suppress(KeyError, binascii.Error, UnicodeDecodeError):
            return base64.b64decode(data[key], validate=True).decode()
        raise Refused(f"the Secret {name} has no {key} that can be read")


@dataclass(slots=True)
class OneJob:
    """A job of a cluster, looked at once or again and again; a context manager."""

    cluster: Cluster
    name: str
    _door: DriverDoor = field(init=False)
    _seen: Shown | None = None

    def __post_init__(self) -> None:
        self._door = DriverDoor(self.cluster)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._door.close()

    def look(self, room: int | None) -> Shown:
        """How it is now. Raises Refused: there is no such job, or the cluster does not answer."""
        try:
            found = looked(self.cluster, self.name, self._door)
        except Refused as error:
            if self._seen is None or "(NotFound)" not in str(error):
                raise
            return Shown(self._seen.view, self._seen.fields, f"{self.name} is gone: it was deleted")
        view = drawn(job_tree(found, datetime.now(UTC)), room)
        self._seen = Shown(view, found.to_json())
        return self._seen


@dataclass(frozen=True, slots=True)
class AllJobs:
    """The jobs of a namespace."""

    cluster: Cluster

    def look(self, _room: int | None) -> Shown:
        """A line for each."""
        jobs, now = self.cluster.list(JOBS), datetime.now(UTC)
        text = "no job in this namespace; -n names another"
        if jobs:
            header = ("NAME", "PHASE", "SUBTASKS", "EPOCH", "CHECKPOINT", "RESTARTS", "TROUBLE")
            text = "\n".join(table_lines(header, [_row(one, now) for one in jobs]))
        return Shown(Text(text), {"jobs": [ClusterLook(one).to_json() for one in jobs]})


def looked(cluster: Cluster, name: str, door: DriverDoor) -> ClusterLook:
    """A job, its pods (driver first) and what its driver says."""
    job = cluster.get(JOBS, name)
    mine = f"moorage.dev/job-uid={job['metadata']['uid']}"
    pods = sorted(cluster.list("pods", mine), key=lambda pod: (_role(pod), name_of(pod)))
    if not any(_role(pod) == "driver" and _pod(pod)["phase"] == "Running" for pod in pods):
        return ClusterLook(job, pods, problem="no driver runs")
    try:
        return ClusterLook(job, pods, door.status(job))
    except Refused as error:
        return ClusterLook(job, pods, problem=f"the driver cannot be asked: {error}")


def job_tree(look: ClusterLook, now: datetime) -> JobTree:
    """The job, what is not as it should be, its pods and subtasks, its snapshots."""
    job, status, run = look.job, look.job.get("status", {}), look.run
    desired = job["spec"].get("desiredState", "Running")
    wanted = "" if is_as_wanted(status.get("phase"), desired) else f" (wanted: {desired})"
    wrong = [text for text in (status.get("message"), *troubles(job, now)) if text]
    wrong += [text for text in (run_troubles(run) if run else ()) if text not in wrong]
    known = status.get("snapshots") or {}
    drivers, others = _pod_branches(look)
    return JobTree(
        title=f"{name_of(job)}  {status.get('phase') or 'Pending'}{wanted}",
        wrong=wrong,
        facts=tuple(run_facts(run, run.at) if run else _status_facts(status, now)),
        drivers=drivers,
        others=others,
        missing=look.problem,
        ends=(
            _restarts(status.get("restarts") or {}, now),
            f"checkpoint: {_summary(known.get('lastCheckpoint'), 'id', now)}",
            f"savepoint: {_summary(known.get('lastSavepoint'), 'name', now)}",
        ),
    )


def _status_facts(status: Json, now: datetime) -> Iterator[str]:
    """What the operator wrote down of what the driver said."""
    driver, scaling = status.get("job") or {}, status.get("scaling") or {}
    rates = f"{driver.get('inputRowsPerSecond', '0')} rows/s, busy {driver.get('busyRatio', '0')}"
    size = size_text(driver.get("stateBytes", 0))
    yield f"stream: epoch {driver.get('epoch', 0)}, {rates}, state {size}"
    if uid := driver.get("watermarkOf"):
        mark, held_by = driver.get("watermark"), driver.get("watermarkHeldBy", "")
        time_ms = int(datetime.fromisoformat(mark).timestamp() * 1000) if mark else None
        yield f"watermark of {uid}: {watermark_text(time_ms, held_by, now)}"
    groups = f"{scaling.get('observedParallelism') or '-'} subtasks"
    yield f"{groups} of {scaling.get('maxParallelism') or '-'} key groups"


def _pod_branches(look: ClusterLook) -> tuple[list[DriverBranch], list[Worker]]:
    """Drivers with their executors, whose names begin as theirs do; and all else."""
    places = by_place(look.run.subtasks if look.run else ())
    drivers: list[tuple[str, DriverBranch, list[Worker]]] = []
    others: list[Worker] = []
    for pod in look.pods:
        facts, name = _pod(pod), name_of(pod)
        about = f"{facts['role']} {name}: {_condition_of(facts)}"
        if facts["role"] == "driver":
            below: list[Worker] = []
            drivers.append((name.removesuffix("driver"), DriverBranch(about, below), below))
            continue
        mine = [below for prefix, _, below in drivers if name.startswith(prefix)]
        (mine or [others])[0].append(Worker(about, _served_by(pod, places)))
    # On an executor whose pod is gone, or that nobody shows.
    (drivers[0][2] if drivers else others).extend(workers_at(places))
    return [branch for _, branch, _ in drivers], others


def _served_by(pod: Json, places: dict[str, list[SubtaskView]]) -> list[SubtaskView]:
    """The subtasks whose state a pod's servers have; they are no others' then."""
    state = pod.get("status", {})
    hosts = {one.get("ip") for one in state.get("podIPs") or ()} | {state.get("podIP")}
    mine = [place for place in places if _host_of(place) in hosts]
    return [one for place in mine for one in places.pop(place)]


def _host_of(place: str) -> str:
    found = split_address(place.removeprefix("tcp:"))
    return found[0] if found else place


def is_as_wanted(phase: str | None, desired: str) -> bool:
    """Whether a phase is what was wanted; who has finished wants nothing more."""
    return phase in (*(_RUNS if desired == "Running" else (desired,)), "Finished")


def troubles(job: Json, now: datetime | None = None) -> Iterator[str]:
    """The conditions that are not as they should be; with `now` also for how long."""
    normal = {"Degraded": "False", "Blocked": "False", "Progressing": "False"}
    if job["spec"].get("desiredState") == "Suspended":
        normal |= dict.fromkeys(("Ready", "Checkpointing"), "False")
    else:
        normal["Suspended"] = "False"
    for one in job.get("status", {}).get("conditions") or []:
        # Of what is not yet so nobody has to do anything.
        if one["type"] != "Stable" and one["status"] != normal.get(one["type"], "True"):
            told = ": ".join(text for text in (one["type"], one["reason"], one["message"]) if text)
            since = one.get("lastTransitionTime") if now else None
            yield f"{told} (for {age_of(since, now)})" if since and now else told


def _restarts(restarts: Json, now: datetime) -> str:
    if not restarts.get("total"):
        return "restarts: none"
    last = f"{restarts.get('lastReason', '')}: {restarts.get('lastMessage', '')}"
    return (
        f"restarts: {restarts['total']}, last {age_of(restarts.get('lastTime'), now)} ago, {last}"
    )


def _summary(snapshot: Json | None, key: str, now: datetime) -> str:
    if not snapshot:
        return "none yet"
    taken = f"{snapshot[key]}, {age_of(snapshot.get('completedAt'), now)} ago"
    size = size_text(snapshot.get("sizeBytes", 0))
    return f"{taken}, epoch {snapshot.get('epoch', 0)}, {size}"


def _pod(pod: Json) -> Json:
    spec, state = pod.get("spec", {}), pod.get("status", {})
    # As kubectl counts them: with those that begin before the others, and stay.
    beside = (one for one in spec.get("initContainers") or () if "restartPolicy" in one)
    lasting = {one["name"] for some in (spec.get("containers") or (), beside) for one in some}
    containers = [one for one in _containers(state) if one["name"] in lasting]
    ready = sum(1 for one in containers if one.get("ready"))
    return {
        "role": _role(pod),
        "phase": "Ending" if pod["metadata"].get("deletionTimestamp") else state.get("phase", ""),
        "ready": f"{ready}/{len(lasting)}",
        "restarts": sum(one.get("restartCount", 0) for one in containers),
        "node": spec.get("nodeName", ""),
        "reason": _held_up_by(state),
    }


def _containers(state: Json) -> list[Json]:
    """What a pod's status says of each of its containers, those before the others first."""
    of_both = (state.get("initContainerStatuses"), state.get("containerStatuses"))
    return [one for some in of_both for one in some or ()]


def _held_up_by(state: Json) -> str:
    """Why a pod is not ready, such as ImagePullBackOff or Unschedulable; empty if nobody says."""
    waiting = [one.get("state") or {} for one in _containers(state)]
    unscheduled = [
        one
        for one in state.get("conditions") or ()
        if one["type"] == "PodScheduled" and one["status"] == "False"
    ]
    reasons = (state, *(one.get("waiting") or {} for one in waiting), *unscheduled)
    return next((one["reason"] for one in reasons if one.get("reason")), "")


def _condition_of(facts: Json) -> str:
    again = f", {facts['restarts']} restarts" if facts["restarts"] else ""
    why = f", {facts['reason']}" if facts["reason"] else ""
    return f"{facts['phase']}, {facts['ready']} ready{why}{again}, on {facts['node'] or 'no node'}"


def _row(job: Json, now: datetime) -> tuple[str | int | None, ...]:
    status = job.get("status", {})
    last = (status.get("snapshots") or {}).get("lastCheckpoint") or {}
    return (
        name_of(job),
        status.get("phase") or "Pending",
        (status.get("scaling") or {}).get("observedParallelism"),
        (status.get("job") or {}).get("epoch"),
        age_of(last.get("completedAt"), now),
        (status.get("restarts") or {}).get("total"),
        next(troubles(job), None),
    )


def _role(pod: Json) -> str:
    return str(pod["metadata"].get("labels", {}).get("moorage.dev/role", "pod"))


def name_of(found: Json) -> str:
    """An object's name."""
    return str(found["metadata"]["name"])


def age_of(moment: str | None, now: datetime) -> str:
    """How long ago a time of the cluster's was."""
    if not moment:
        return "-"
    return since_text(datetime.fromisoformat(moment), now)
