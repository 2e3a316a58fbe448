"""`python -m moorage_operator.uninstall`: what is left of a release, said; and let go, if wanted.

Run once by the chart after the operator was deleted. Jobs and snapshots are no part of the release
and stay; those with the operator's finalizer could then not be deleted, nor a namespace with them.
So the finalizer is taken off, unless whoever uninstalls means to install again and wants deletions
to wait for that.
"""

import asyncio
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kubernetes.aio.config import ConfigException

from moorage_operator.kube.client import KubeCluster, configuration
from moorage_operator.objects import job_name_of
from moorage_operator.ports import (
    Cluster,
    ClusterError,
    Conflict,
    Kind,
    NotFound,
    Object,
)
from moorage_operator.settings import Settings, SettingsError, read_settings
from moorage_operator.shards import operator_of
from moorage_operator.world import Config

KINDS: tuple[Kind, ...] = ("StatefulSparkJob", "StatefulSparkSnapshot")
FINALIZER = Config(cluster_id="").finalizer
_PATIENCE = 120.0
_TRIES = 5
_USER_ERROR = 2
_FAILED = 1


@dataclass(frozen=True, slots=True)
class Leftover:
    """An object that stays."""

    kind: Kind
    namespace: str
    name: str
    held: bool  # whether the operator's finalizer is on it still
    going: bool  # whether it is being deleted, and waits for that


@dataclass(frozen=True, slots=True)
class Labelled:
    """What a release looked after that finds its namespaces by their labels.

    Beside what is in them, that is what it had in a namespace that lost the label, or never had
    one by the selector of now: such a job names the Lease that it was looked after under last.
    """

    namespaces: frozenset[str]  # with the labels, now
    leases: frozenset[str]  # of the release's operators, as `namespace/name`
    _jobs: set[tuple[str, str]] = field(default_factory=set)  # had, in other namespaces

    def has(self, kind: Kind, body: Object) -> bool:
        """Whether an object is the release's. A snapshot is whose its job is: jobs come first."""
        meta = body["metadata"]
        namespace: str = meta["namespace"]
        if namespace in self.namespaces:
            return True
        if kind == "StatefulSparkSnapshot":
            return (namespace, job_name_of(body.get("spec") or {})) in self._jobs
        job, said = (namespace, meta["name"]), operator_of(body)
        # One that another operator has taken over, or is taking over, names that one's.
        if said is None or said.lease not in self.leases:
            self._jobs.discard(job)
            return False
        self._jobs.add(job)
        return True


async def let_go(
    cluster: Cluster,
    namespaces: Iterable[str | None],
    *,
    release: bool,
    mine: Labelled | None = None,
) -> list[Leftover]:
    """Every job and snapshot, after the operator's finalizer was taken off if that is wanted.

    A namespace that is gone, or closed to us, keeps none of the others from being seen to.

    Args:
        mine: of what is there, what the release looked after; None for all of it.
    """
    found, failed = list[Leftover](), list[ClusterError]()
    for namespace in namespaces:
        for kind in KINDS:
            try:
                found += await _seen_to(cluster, kind, namespace, mine, release=release)
            except ClusterError as error:
                failed.append(error)
    if failed:
        raise failed[0]
    return found


async def _seen_to(
    cluster: Cluster,
    kind: Kind,
    namespace: str | None,
    mine: Labelled | None,
    *,
    release: bool,
) -> list[Leftover]:
    found = []
    for body in await _listed(cluster, kind, namespace):
        if mine is not None and not mine.has(kind, body):
            continue
        held = FINALIZER in _finalizers(body)
        if held and release and not await _release(cluster, kind, body, mine):
            continue
        meta = body["metadata"]
        going = bool(meta.get("deletionTimestamp"))
        if going and release and _finalizers(body) == [FINALIZER]:
            continue
        where = (kind, meta["namespace"], meta["name"])
        found.append(Leftover(*where, held and not release, going))
    return found


def report(left: list[Leftover], *, release: bool) -> str:
    """What a person who uninstalls should know."""
    if not left:
        return "nothing of Moorage is left: no job and no snapshot"
    lines = [
        f"{one.kind} {one.namespace}/{one.name}: {_state(one)}"
        for one in sorted(left, key=lambda one: (one.namespace, one.kind, one.name))
    ]
    if release:
        last = (
            "jobs run on, and nobody mends them. What is deleted from now on goes at once: no "
            "final savepoint is taken, and checkpoints and savepoints stay in their stores. An "
            "operator that is installed again takes up what is there"
        )
    else:
        last = (
            "jobs run on, and nobody mends them. Deleting what is held, or its namespace, waits "
            "for an operator: install it again, or take the finalizer off: kubectl -n NAMESPACE "
            'patch KIND NAME --type merge -p \'{"metadata":{"finalizers":null}}\''
        )
    return "\n".join([*lines, last])


async def _listed(cluster: Cluster, kind: Kind, namespace: str | None) -> list[Object]:
    try:
        return await cluster.list(kind, namespace)
    except NotFound:
        # The definitions went with the release.
        return []


async def _release(cluster: Cluster, kind: Kind, body: Object, mine: Labelled | None) -> bool:
    """Take our finalizer off, and no other; False if the object is gone, or another's by now."""
    found: Object | None = body
    for _ in range(_TRIES):
        if found is None or (mine is not None and not mine.has(kind, found)):
            return False
        meta = found["metadata"]
        others = [one for one in _finalizers(found) if one != FINALIZER]
        version = {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}
        patch = {"metadata": {**version, "finalizers": others}}
        try:
            await cluster.patch(kind, meta["namespace"], meta["name"], patch)
        except NotFound:
            return False
        except Conflict:
            found = await cluster.get(kind, meta["namespace"], meta["name"])
        else:
            return True
    meta = body["metadata"]
    raise ClusterError(
        f"the finalizer cannot be taken off, somebody else writes the object all the time: "
        f"kind={kind} namespace={meta['namespace']} name={meta['name']}"
    )


async def _until_gone(
    cluster: Cluster, namespace: str, labels: dict[str, str], tick: Callable[[], float]
) -> None:
    """Wait for the operator's pods to end: they would put the finalizers on again."""
    end = tick() + _PATIENCE
    while await cluster.list("Pod", namespace, labels):
        if tick() > end:
            raise ClusterError(
                f"the operator still runs: namespace={namespace} waited={_PATIENCE:g}s; delete its "
                "pods, then take the finalizers off by hand"
            )
        await asyncio.sleep(1.0)


def _finalizers(body: Object) -> list[str]:
    return list(body["metadata"].get("finalizers") or ())


def _state(one: Leftover) -> str:
    if one.going:
        return "is being deleted, and waits for an operator" if one.held else "is being deleted"
    return "stays; deleting it waits for an operator" if one.held else "stays"


async def _uninstall(settings: Settings, asked: Namespace) -> str:
    release = asked.finalizers == "Release"
    labels = dict(pair.split("=", 1) for pair in asked.operator_labels.split(","))
    cluster = KubeCluster(
        await configuration(settings.kubeconfig, settings.context),
        timeout=settings.request_timeout,
    )
    try:
        tick = asyncio.get_running_loop().time
        await _until_gone(cluster, settings.namespace, labels, tick)
        leases = frozenset(asked.leases.split(",")) - {""}
        where, mine = await _reach(cluster, settings, leases)
        left = await let_go(cluster, where, release=release, mine=mine)
    finally:
        await cluster.close()
    return report(left, release=release)


async def _reach(
    cluster: Cluster, settings: Settings, leases: frozenset[str]
) -> tuple[Iterable[str | None], Labelled | None]:
    """Where to look, and what of it was looked after; what others of the cluster hold is theirs."""
    selector = settings.watch_namespace_selector
    if not selector:
        return settings.watch_namespaces or (None,), None
    found = set[str]()
    async for page in cluster.pages("Namespace", None, selector):
        found.update(body["metadata"]["name"] for body in page.items)
    return (None,), Labelled(frozenset(found), leases)


def main() -> int:
    """Returns the exit status: 2 for wrong settings, 1 if the API server refused, else 0."""
    parser = ArgumentParser(prog="moorage_operator.uninstall", description=__doc__)
    parser.add_argument("--finalizers", choices=("Release", "Keep"), required=True)
    parser.add_argument("--operator-labels", required=True, help="of the operator's pods: a=b,c=d")
    parser.add_argument(
        "--leases",
        default="",
        help="of the operators, as namespace/name,namespace/name: whose jobs are let go in "
        "namespaces that lost their labels",
    )
    asked, others = parser.parse_known_args()
    try:
        settings = read_settings(others, os.environ)
        said = asyncio.run(_uninstall(settings, asked))
    except (SettingsError, ConfigException) as error:
        sys.stderr.write(f"{error}\n")
        return _USER_ERROR
    except ClusterError as error:
        sys.stderr.write(f"what is left cannot be seen to: {error}\n")
        return _FAILED
    sys.stdout.write(f"{said}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
