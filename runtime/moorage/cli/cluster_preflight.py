"""What a cluster would say against a job's pods, asked by hand as the operator asks it.

The pods, what quotas count of them and what nodes hold are the operator's own functions: so what
passes here passes there. They are asked through the user's `kubectl`, with the user's rights, and
nothing is made but the pod of `pod_finding`, which is deleted again. What may not be read is said
to be unknown.
"""

import asyncio
import json
import secrets
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from moorage.cli.findings import Finding
from moorage.cli.kubectl import JOBS, Ask, Cluster, Json, Refused, last_line
from moorage.cli.output import complain
from moorage_api import StatefulSparkJob
from moorage_api.status import read_status
from moorage_operator.admission import Admission, Refusals
from moorage_operator.children.names import JOB_UID_LABEL, config_map_name
from moorage_operator.decide.room import edit_lacks
from moorage_operator.lineages.pods import pod_answer, pod_name, store_task_pod
from moorage_operator.lineages.requests import request_of
from moorage_operator.objects import read_revision
from moorage_operator.plan import StoreTask
from moorage_operator.podviews import pod_view
from moorage_operator.ports import (
    ApiUnavailable,
    ClusterError,
    Forbidden,
    Invalid,
    JobRefs,
    NameTaken,
    Page,
)
from moorage_operator.quota import of_containers, room, without_containers
from moorage_operator.references import fact_problems
from moorage_operator.world import Meta, Revision, Room

_REFERENCES = ("Secret", "ServiceAccount", "PriorityClass", "StatefulSparkSnapshot")
_NO_KIND = ("no matches for kind", "doesn't have a resource type")
_POD = "image and job"
_NO_RIGHT = "cannot create resource"
_WHICH_CLUSTER = (
    "ask for a right to get the namespace kube-system, or, of a job that runs, its ConfigMaps"
)


class NoCluster(Exception):
    """There is no cluster to be asked, or none with Moorage; the text says why."""


@dataclass(frozen=True, slots=True)
class Running:
    """The job as the cluster has it: its pods make room for those of another version."""

    meta: Meta  # with an empty uid where there is none
    attempt: int = 0
    revision: Revision | None = None
    drivers: int = 0
    executors: int = 0
    unread: str = ""  # why its pods are not known; empty if they are
    restore_nonce: int = 0  # that was followed last

    @property
    def runs(self) -> bool:
        """Whether a version runs that another one would follow."""
        return self.drivers > 0


def cluster_findings(
    ask: Ask, job: StatefulSparkJob, document: Json, namespace: str
) -> Iterator[Finding]:
    """Ask all that a dry run, quotas and nodes say, whatever the first of them says.

    Args:
        document: the manifest as it is written.

    Raises:
        NoCluster: nobody can be asked, or nobody there knows jobs.
    """
    _reached(ask)
    seen = _Seen(ask, namespace)
    yield _manifest(ask, document)
    running = asyncio.run(_running(seen, job.name))
    yield from _references(seen, running, job)
    refusals, why = _asked(seen, running, job)
    yield from _pods(refusals, why)
    yield from _quotas(seen, running, job)
    yield _nodes(seen, refusals)


def pod_finding(
    ask: Ask, job: StatefulSparkJob, namespace: str, path: str, seconds: float
) -> Finding:
    """Have a pod of the job's image try what a start would, as the operator does, and delete it.

    Args:
        path: what is to be restored, as a URL; empty for what a start would choose.
        seconds: to wait for its answer.
    """
    cluster = Cluster(ask)
    seen = _Seen(ask, namespace)
    running = asyncio.run(_running(seen, job.name))
    task = _task(seen, running, job, path)
    if isinstance(task, Finding):
        return task
    # Without the job's uid it is no pod of the job's: the operator would delete it, as it names
    # none of its tasks.
    refs = JobRefs(replace(running.meta, uid=""), job.spec)
    name = pod_name(job.name, task.id)
    try:
        owner = _cluster_id(cluster, running)
    except Refused as error:
        text = f"no pod can be sent that knows whose state it may read, by the cluster: {error}"
        return Finding(_POD, "unknown", text, _WHICH_CLUSTER)
    try:
        request = request_of(JobRefs(running.meta, job.spec), task, owner)
        cluster.create(store_task_pod(refs, request, int(seconds)))
    except (Invalid, Refused) as error:
        return Finding(_POD, "unknown", f"no pod can be sent: {error}")
    try:

        def outcome(found: Json) -> str | None:
            looked = pod_answer(found, refs, task.id)
            return None if looked.answer is not None else looked.held or "it is at work"

        answer = pod_answer(cluster.wait("pod", name, seconds, outcome), refs, task.id).answer
    except Refused as error:
        return Finding(_POD, "failed", str(error), "see why the pod does not end")
    finally:
        _delete(cluster, name)
    if answer is None or answer.state != "Completed":
        text = answer.message if answer is not None else "no answer"
        return Finding(_POD, "failed", text)
    return Finding(_POD, "ok", str(answer.result.get("text", "")))


def _task(seen: "_Seen", running: Running, job: StatefulSparkJob, path: str) -> StoreTask | Finding:
    """What the pod tries: the point that is named, or that which a start would begin from."""
    task = StoreTask(f"by-hand-{secrets.token_hex(4)}", "Preflight", path=path)
    rules = job.spec.restore
    # It is followed once: a later start goes on from the newest checkpoint.
    by_spec = running.attempt == 0 or rules.nonce > running.restore_nonce
    mode = rules.mode if by_spec else "Latest"
    stateless = running.runs and job.spec.upgrade.mode == "Stateless"
    if path:
        return task
    if mode == "Path":
        return replace(task, path=rules.path)
    if mode == "Snapshot":
        return _of_snapshot(seen, task, rules.snapshot_name)
    return replace(task, source="Empty" if mode == "Empty" or stateless else "")


def _of_snapshot(seen: "_Seen", task: StoreTask, name: str) -> StoreTask | Finding:
    where = f"spec.restore.snapshotName names {name}"
    try:
        found = asyncio.run(seen.get("StatefulSparkSnapshot", seen.namespace, name))
    except ClusterError as error:
        text = f"{where}, which cannot be read: {error}"
        return Finding(_POD, "unknown", text, "ask for a right to get it, or give --restore URL")
    status = (found or {}).get("status") or {}
    if status.get("state") != "Completed" or not status.get("path"):
        text = f"{where}, which is not completed"
        return Finding(_POD, "failed", text, "wait for it, or name another one")
    return replace(task, path=status["path"], digest=status.get("manifestDigest", ""))


def _delete(cluster: Cluster, name: str) -> None:
    try:
        cluster.delete("pod", name)
    except Refused as error:
        complain(f"the pod {name} was not deleted, and ends by itself: {error}")


def _reached(ask: Ask) -> None:
    try:
        answer = ask(["version", "-o", "json"])
    except FileNotFoundError:
        raise NoCluster("kubectl is not installed, or not on PATH") from None
    if answer.returncode:
        raise NoCluster(f"kubectl reaches no cluster: {last_line(answer.stderr)}")


def _manifest(ask: Ask, document: Json) -> Finding:
    """The manifest itself, in a dry run: the definitions' schema and rules, and other webhooks."""
    words = ["apply", "--dry-run=server", "-f", "-", "-o", "name"]
    # A date that nobody quoted is no JSON.
    answer = ask(words, json.dumps(document, default=str))
    if not answer.returncode:
        return Finding("manifest", "ok", "the API server would take it")
    said = last_line(answer.stderr)
    if any(word in answer.stderr for word in _NO_KIND):
        raise NoCluster(f"there is no Moorage in the cluster of kubectl's context: {said}")
    if "(Forbidden)" in said:
        return Finding("manifest", "unknown", f"you may not create or change jobs there: {said}")
    return Finding("manifest", "failed", said, "correct the manifest")


async def _running(seen: "_Seen", name: str) -> Running:
    """What is there of the job, as far as the user may read it."""
    try:
        body = await seen.get(JOBS, seen.namespace, name)
    except ClusterError as error:
        return Running(Meta(name, seen.namespace, "", 0, ""), unread=str(error))
    if body is None:
        return Running(Meta(name, seen.namespace, "", 0, ""))
    given, uid = body["metadata"], str(body["metadata"]["uid"])
    meta = Meta(name, seen.namespace, uid, 0, "", labels=given.get("labels") or {})
    status = read_status(body.get("status"))
    attempt, nonce = status.attempt, status.reconciliation.restore_nonce
    try:
        listed = await seen.list("Pod", seen.namespace, {JOB_UID_LABEL: uid})
        kept = None
        if attempt.revision:  # none of a job that was never started
            kept = await seen.get("ControllerRevision", seen.namespace, attempt.revision)
    except ClusterError as error:
        return Running(meta, attempt.number, unread=str(error), restore_nonce=nonce)
    pods = [pod_view(one, uid) for one in listed]
    lives = [one.role for one in pods if not one.terminal]
    revision = read_revision(kept) if kept is not None else None
    living = (lives.count("driver"), lives.count("executor"))
    return Running(meta, attempt.number, revision, *living, restore_nonce=nonce)


def _references(seen: "_Seen", running: Running, job: StatefulSparkJob) -> Iterator[Finding]:
    try:
        problems = asyncio.run(fact_problems(seen, running.meta, job.spec))
    except ClusterError as error:
        yield Finding("references", "unknown", f"not looked up: {error}")
        return
    for one in problems:
        yield Finding("references", "failed", one.what, one.fix)
    unread = [one for one in _REFERENCES if one in seen.unread]
    for kind in unread:
        yield Finding("references", "unknown", f"{kind}: {seen.unread[kind]}")
    if not problems and not unread:
        yield Finding("references", "ok", "what it names beside itself is there")


def _asked(seen: "_Seen", running: Running, job: StatefulSparkJob) -> tuple[Refusals | None, str]:
    """What is said against the pods; or why nobody says it."""
    attempt = running.attempt + 1
    try:
        asking = Admission(seen).refusals(running.meta, "by-hand", "", job.spec, attempt, "by-hand")
        return asyncio.run(asking), ""
    except ClusterError as error:
        return None, str(error)


def _pods(refusals: Refusals | None, why: str) -> Iterator[Finding]:
    if refusals is None:
        todo = "ask who may create pods there" if _NO_RIGHT in why else ""
        yield Finding("pods", "unknown", f"not asked for in a dry run: {why}", todo)
        return
    for text in refusals.texts:
        yield Finding("pods", "failed", text)
    if not refusals.texts:
        full = ", ".join(one["metadata"]["name"] for one in refusals.quotas)
        note = f", but for quotas without room for one more: {full}" if full else ""
        yield Finding("pods", "ok", f"a driver and an executor would be admitted{note}")


def _quotas(seen: "_Seen", running: Running, job: StatefulSparkJob) -> Iterator[Finding]:
    try:
        quotas = asyncio.run(seen.list("ResourceQuota", seen.namespace))
    except ClusterError as error:
        yield Finding("quotas", "unknown", f"not counted: {error}")
        return
    if quotas and running.unread:
        why = f"whether the pods of the version that runs make room is not known: {running.unread}"
        yield Finding("quotas", "unknown", why)
        return
    depends = sorted({name for one in quotas for name in of_containers(one)})
    ranges: list[Json] = []
    try:
        if depends:
            ranges = asyncio.run(seen.list("LimitRange", seen.namespace))
            depends = []
    except ClusterError as error:
        # What a default may add to is neither room nor a lack of it; the rest is judged.
        quotas = [without_containers(one) for one in quotas]
        bounds = ", ".join(depends)
        text = f"what a LimitRange adds to containers is not known, nor room for {bounds}: {error}"
        yield Finding("quotas", "unknown", text)
    before = running.revision.spec if running.revision is not None else None
    living = (running.drivers, running.executors)
    found = room(quotas, running.meta, job.spec, before, *living, ranges)
    lacks = _lacks(found, running, job)
    if lacks:
        todo = "raise the quota, or ask for less" if "has no room" in lacks else ""
        yield Finding("quotas", "failed", lacks, todo)
    warned = [found.silent] if not lacks and not running.runs else []
    if not lacks and found.whole and not running.runs:
        warned.append(f"it would start with fewer executors: {found.whole}")
    for text in filter(None, warned):
        yield Finding("quotas", "warning", text)
    if not lacks and not any(warned) and not depends:
        said = "there is none" if not quotas else f"room for all pods, of {len(quotas)}"
        yield Finding("quotas", "ok", said)


def _lacks(found: Room, running: Running, job: StatefulSparkJob) -> str:
    """What would keep the start, or the edit, waiting; empty for nothing."""
    if not running.runs:
        return found.start
    before, upgrade = running.revision.spec if running.revision else job.spec, job.spec.upgrade
    beside = upgrade.strategy == "WarmStandby"
    return edit_lacks(found, before, job.spec, beside=beside, trial=upgrade.preflight)


def _nodes(seen: "_Seen", refusals: Refusals | None) -> Finding:
    if refusals is None:
        return Finding("nodes", "unknown", "not looked at, as the pods were not tried")
    if "Node" in seen.unread:
        return Finding("nodes", "unknown", f"not looked at: {seen.unread['Node']}")
    if refusals.unplaced:
        todo = "ask for less, or see that the cluster makes such nodes"
        return Finding("nodes", "warning", f"none could hold {refusals.unplaced}", todo)
    return Finding("nodes", "ok", "there is one that could hold each pod if it were empty")


def _cluster_id(cluster: Cluster, running: Running) -> str:
    """What the operator calls the cluster: as the driver that runs was told, or by kube-system."""
    if running.attempt:
        try:
            kept = cluster.get("configmap", config_map_name(running.meta.name, running.attempt))
            return str(json.loads(kept["data"]["start.json"])["clusterId"])
        except (Refused, KeyError, TypeError, ValueError):
            pass
    return str(cluster.get("namespace", "kube-system")["metadata"]["uid"])


@dataclass(slots=True)
class _Seen:
    """The API server by the user's kubectl, as far as `Admission` and `Reads` ask of it."""

    ask: Ask
    namespace: str
    unread: dict[str, str] = field(default_factory=dict)
    """Why which kinds could not be read."""

    async def get(self, kind: str, namespace: str, name: str) -> Json | None:
        """See `Reads.get`; of the namespace of `ask` alone."""
        del namespace
        try:
            found: Json = self._told(kind, ["get", kind, name, "-o", "json"])
        except ClusterError as error:
            if error.reason == "NotFound":
                return None
            raise
        return found

    async def list(
        self, kind: str, namespace: str | None, labels: Mapping[str, str] | None = None
    ) -> list[Json]:
        """See `Reads.list`; of the namespace of `ask` alone."""
        del namespace
        chosen = (
            ["-l", ",".join(f"{key}={value}" for key, value in labels.items())] if labels else []
        )
        found: list[Json] = self._told(kind, ["get", kind, *chosen, "-o", "json"])["items"]
        return found

    async def pages(self, kind: str, namespace: str | None, selector: str) -> AsyncGenerator[Page]:
        """See `Cluster.pages`."""
        del selector
        yield Page(await self.list(kind, namespace), first=True)

    async def try_create(self, body: Json) -> None:
        """See `Cluster.try_create`; without an owner: the job may not be there yet."""
        kept = {k: v for k, v in body["metadata"].items() if k != "ownerReferences"}
        body = {**body, "metadata": kept}
        words = ["create", "--dry-run=server", "-f", "-", "-o", "name"]
        self._ask(body["kind"], words, json.dumps(body))

    def _told(self, kind: str, words: Sequence[str]) -> Any:
        return json.loads(self._ask(kind, words, ""))

    def _ask(self, kind: str, words: Sequence[str], text: str) -> str:
        answer = self.ask(words, text)
        if not answer.returncode:
            return answer.stdout
        said = last_line(answer.stderr)
        if "(NotFound)" in said:
            raise ClusterError(said, "NotFound")
        if words[0] == "get":
            self.unread[kind] = said
        if "(Forbidden)" in said or " is forbidden" in said:
            raise Forbidden(said, "Forbidden")
        if "(AlreadyExists)" in said:
            raise NameTaken(said, "AlreadyExists")
        if "(Invalid)" in said or " is invalid" in said or "(BadRequest)" in said:
            raise Invalid(said, "Invalid")
        raise ApiUnavailable(said)
