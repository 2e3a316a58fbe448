"""Whether the API server would take the pods of a version, asked before anything is stopped.

A driver's pod and an executor's are created in a dry run: what admission, Pod Security and
LimitRanges say of them is said, and nothing is made. A quota counts the job's own pods, which may
make room: its word is passed on to be judged. And nodes are looked at, where they may be listed.
Called by the observer.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from moorage_api import JobSpec
from moorage_api.driver import StartOrder
from moorage_operator.children.pods import driver_pod, executor_pod
from moorage_operator.ports import (
    ClusterError,
    Forbidden,
    Invalid,
    Kind,
    NameTaken,
    Object,
    Page,
)
from moorage_operator.quota import refused_by
from moorage_operator.scheduling import Places
from moorage_operator.world import Meta

_UNTRIED = "does not support dry run"
"""Of a webhook with effects of its own: the API server does not ask it, and refuses."""
_NO_RIGHT = "cannot create resource"
"""Of the operator's own rights, which say nothing about a version."""


class Refusals(NamedTuple):
    """What was said against a version's pods."""

    texts: tuple[str, ...] = ()  # why which pods would not be taken, whatever else runs
    quotas: tuple[Object, ...] = ()  # which have no room for one more while the old ones are there
    unplaced: str = ""  # which pods no node could hold, even an empty one, and why; empty for none


class Asks(Protocol):
    """What of the port is needed here: see `Cluster`."""

    def pages(self, kind: Kind, namespace: str | None, selector: str) -> AsyncGenerator[Page]:
        """See `Cluster.pages`."""

    async def try_create(self, body: Object) -> None:
        """See `Cluster.try_create`."""


@dataclass(slots=True)
class Admission:
    """What the API server said, once for each operation that asks."""

    cluster: Asks
    _known: dict[str, tuple[str, Refusals]] = field(default_factory=dict)

    async def refusals(
        self, meta: Meta, operation: str, revision: str, spec: JobSpec, attempt: int, cluster: str
    ) -> Refusals:
        """Why which pods would not be taken.

        Args:
            operation: names the question; it is asked once.
            attempt: of the driver that would be started.

        Raises:
            ClusterError: nobody knows.
        """
        who = f"{meta.namespace}/{meta.name}"
        known = self._known.get(who)
        if known is None or known[0] != operation:
            order = StartOrder(attempt=attempt, cluster_id=cluster, job_uid=meta.uid)
            driver = driver_pod(meta, spec, revision, order)
            executor = executor_pod(meta, spec, revision, attempt)
            known = (operation, await self._asked(driver, executor))
            self._known[who] = known
        return known[1]

    def forget(self, who: str) -> None:
        """A job, as `namespace/name`, is gone."""
        self._known.pop(who, None)

    async def _asked(self, driver: Object, executor: Object) -> Refusals:
        texts, quotas = [], dict[str, Object]()
        for role, body in (("driver", driver), ("executor", executor)):
            said = await self._refusal(body)
            quota = refused_by(said)
            if quota is not None:
                quotas[quota["metadata"]["name"]] = quota
            elif said:
                texts.append(f"{role}: {said}")
        unplaced = await self._unplaced({"driver": driver, "executor": executor})
        return Refusals(tuple(texts), tuple(quotas.values()), unplaced)

    async def _unplaced(self, pods: dict[str, Object]) -> str:
        """Which of them no node could hold, and why; nothing where nodes may not be listed."""
        places = {role: Places(pod) for role, pod in pods.items()}
        try:
            async with aclosing(self.cluster.pages("Node", None, "")) as pages:
                async for page in pages:
                    # A list of many nodes is long, and the first of them mostly do.
                    looked = [one.look(page.items) for one in places.values()]
                    if all(looked):
                        return ""
        except ClusterError:
            return ""
        return "; ".join(f"{role}: {one.text}" for role, one in places.items() if one.text)

    async def _refusal(self, body: Object) -> str:
        """What the API server says against the pod; empty if nothing, or if it cannot say."""
        try:
            await self.cluster.try_create(body)
        except (Forbidden, Invalid) as error:
            if error.reason == "NamespaceTerminating" or _NO_RIGHT in str(error):
                raise
            return "" if _UNTRIED in str(error) else str(error)
        except NameTaken:
            return ""
        return ""
