"""Whether the API server would take the pods of a version, asked before anything is stopped.

A driver's pod and an executor's are created in a dry run: what admission, Pod Security, LimitRanges
and quotas say of them is said, and nothing is made. The job's own pods that run now make room for
them, so that a quota which is used up by these alone refuses nothing. Called by the observer.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from moorage_api import JobSpec
from moorage_api.driver import StartOrder
from moorage_api.quantities import Quantity
from moorage_api.sizing import executor_count
from moorage_operator.children import names
from moorage_operator.children.pods import driver_pod, executor_pod
from moorage_operator.ports import (
    Cluster,
    Forbidden,
    Invalid,
    NameTaken,
    Object,
)
from moorage_operator.quota import mapping
from moorage_operator.world import Meta

_QUOTA = re.compile(
    r"exceeded quota: (?P<name>[^,]+), requested: (?P<requested>\S+), "
    r"used: (?P<used>\S+), limited: (?P<limited>\S+)"
)
_UNTRIED = "does not support dry run"
"""Of a webhook with effects of its own: the API server does not ask it, and refuses."""
_NO_RIGHT = "cannot create resource"
"""Of the operator's own rights, which say nothing about a version."""
_ENDED = ("Succeeded", "Failed")


@dataclass(slots=True)
class Admission:
    """What the API server said, once for each operation that asks."""

    cluster: Cluster
    _known: dict[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)

    async def refusals(
        self, meta: Meta, operation: str, revision: str, spec: JobSpec, attempt: int, cluster: str
    ) -> tuple[str, ...]:
        """Why which pods would not be taken; empty if all would.

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
            count = executor_count(spec.executor, spec.scaling.parallelism)
            known = (operation, await self._asked(meta, driver, executor, count))
            self._known[who] = known
        return known[1]

    def forget(self, who: str) -> None:
        """A job, as `namespace/name`, is gone."""
        self._known.pop(who, None)

    async def _asked(
        self, meta: Meta, driver: Object, executor: Object, count: int
    ) -> tuple[str, ...]:
        found = []
        for role, body in (("driver", driver), ("executor", executor)):
            said = await self._refusal(body)
            if said and (quota := _QUOTA.search(said)):
                held = await self._held(meta)
                said = _over(quota, held, [(driver, 1), (executor, count)])
            if said:
                found.append(f"{role}: {said}")
        return tuple(found)

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

    async def _held(self, meta: Meta) -> list[Object]:
        """The job's pods that are gone when the new version starts."""
        labels = {names.JOB_UID_LABEL: meta.uid}
        found = await self.cluster.list("Pod", meta.namespace, labels)
        return [one for one in found if (one.get("status") or {}).get("phase") not in _ENDED]


def amount(pod: Object, resource: str) -> Decimal | None:
    """How much of what a quota counts a pod takes; None where this is not known here."""
    if resource in ("pods", "count/pods"):
        return Decimal(1)
    which, _, name = resource.rpartition(".")
    if which not in ("", "requests", "limits"):
        return None
    field_name, spec = which or "requests", pod.get("spec") or {}
    init = spec.get("initContainers") or ()
    beside = [one for one in init if one.get("restartPolicy") == "Always"]
    steady = _sum([*(spec.get("containers") or ()), *beside], field_name, name)
    once = [_sum([one], field_name, name) for one in init if one not in beside]
    return max([steady, *once])


def _sum(containers: Iterable[Mapping[str, Any]], which: str, name: str) -> Decimal:
    total = Decimal(0)
    for one in containers:
        resources = mapping(one.get("resources"))
        given = mapping(resources.get(which)).get(name)
        if given is None and which == "requests":
            # As the API server fills it in.
            given = mapping(resources.get("limits")).get(name)
        total += Quantity(str(given)).value if given is not None else 0
    return total


def _over(quota: re.Match[str], held: list[Object], wanted: list[tuple[Object, int]]) -> str:
    """What the new version lacks in a quota when the old one has made room; empty if nothing."""
    used, limited = _amounts(quota["used"]), _amounts(quota["limited"])
    for name in _amounts(quota["requested"]):
        if name not in used or name not in limited:
            continue
        parts = [(amount(pod, name), count) for pod, count in wanted]
        kept = [amount(pod, name) for pod in held]
        needed = sum((one * count for one, count in parts if one is not None), Decimal(0))
        if any(one is None for one, _ in parts):
            continue
        free = limited[name] - used[name] + sum((one or Decimal(0) for one in kept), Decimal(0))
        if needed > free:
            return (
                f"quota {quota['name']} has too little: {name} needed={_text(needed)} "
                f"free={_text(free)} of {_text(limited[name])}, when the old version has ended"
            )
    return ""


def _amounts(text: str) -> dict[str, Decimal]:
    """`pods=1,requests.cpu=2` by name; what is no amount is left out."""
    found = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        try:
            found[name] = Quantity(value).value
        except ValueError:
            continue
    return found


def _text(value: Decimal) -> str:
    return format(value.normalize(), "f")
