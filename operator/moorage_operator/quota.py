"""Whether a namespace's ResourceQuotas have room for a job's pods, before these are made. Pure.

A quota lets pods be made one by one: what has no room is refused, by Spark again and again, and
nobody but the log of the driver says so. What is judged here is what the API server will judge, and
pods are counted as it counts them. It may be old by then: so it is said, and never taken for more
than a reason to wait. Texts name no amount that changes while the job waits.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any, NamedTuple

from moorage_api import JobSpec
from moorage_api.driver import StartOrder
from moorage_api.sizing import executor_count
from moorage_operator.children.pods import driver_pod, executor_pod
from moorage_operator.lineages.pods import store_task_pod
from moorage_operator.lineages.requests import request_of
from moorage_operator.plan import StoreTask
from moorage_operator.pod_resources import (
    Amounts,
    add,
    amount_of,
    items,
    mapping,
    said,
    shown,
    taken,
    with_defaults,
)
from moorage_operator.ports import Invalid, JobRefs, Object
from moorage_operator.world import Meta, Room

_REFUSED = re.compile(
    r"exceeded quota: (?P<name>[^,]+), requested: (?P<requested>\S+), "
    r"used: (?P<used>\S+), limited: (?P<limited>\S+)"
)
_PLAIN = ("cpu", "memory", "ephemeral-storage")
"""What a quota also knows without `requests.`, and of which it knows limits."""
_TO_BE_SAID = {
    "cpu": ("requests", "cpu"),
    "memory": ("requests", "memory"),
    "requests.cpu": ("requests", "cpu"),
    "requests.memory": ("requests", "memory"),
    "limits.cpu": ("limits", "cpu"),
    "limits.memory": ("limits", "memory"),
}
"""What every container has to say where a quota bounds it."""
_OF_ATTEMPTS = {"configmaps": 2, "secrets": 1}
"""Of each driver: its orders, what Spark makes for executors, and its tokens."""
_NONE = Decimal(0)


def room(
    quotas: Iterable[Object],
    meta: Meta,
    wanted: JobSpec,
    running: JobSpec | None,
    drivers: int,
    executors: int,
    ranges: Iterable[Object] = (),
    claims: int = 0,
) -> Room:
    """What the quotas lack for the pods of a spec.

    Args:
        running: what the job's living pods were made of, which make room or stay.
        drivers: how many of them are drivers.
        executors: how many are executors.
        ranges: the namespace's LimitRanges, which say what containers do not.
        claims: how many the job has of those that are reused, and need not be made.
    """
    applying, known, defaults = list(quotas), running or wanted, list(ranges)
    count = executor_count(wanted.executor, wanted.scaling.parallelism)
    before = executor_count(known.executor, known.scaling.parallelism)
    new, old = _Job.of(meta, wanted, defaults), _Job.of(meta, known, defaults)
    held = _Asked.of(old, drivers, executors, min(claims, before))
    whole, once = _Asked.of(new, 1, count, count), _Asked.of(old, 1, before, before)
    lacks, silent = list(_lacking(applying, whole, held)), list(_silent(applying, new))
    grown = [one for one in lacks if one.wanted > once.counted(one.quota).get(one.resource, _NONE)]
    # What runs was taken, if by a webhook's help; and who starts hears of the API server at once.
    quieter = [one for one in silent if one not in set(_silent(applying, old))]
    one_of_each = _lacking(applying, _Asked.of(new, 1, 1, 1), held)
    return Room(
        start=_texts(one_of_each),
        whole=_texts(lacks),
        growth=_texts([*grown, *quieter]) if running else "",
        beside=_texts([*_lacking(applying, whole, _Asked()), *quieter]),
        trial=_texts(_lacking(applying, _Asked.of_trial(new), _Asked())) if running else "",
        silent=_texts(silent),
        left=any(_is_left(known, one.resource) for one in lacks),
    )


def of_containers(quota: Object) -> list[str]:
    """What it bounds that containers say, or that a LimitRange's default says for them."""
    return [name for name in _hard(quota) if _is_said_by_containers(name)]


def without_containers(quota: Object) -> Object:
    """The quota with those bounds alone that no LimitRange has to do with."""
    hard = {k: v for k, v in _hard(quota).items() if not _is_said_by_containers(k)}
    status = {**mapping(quota.get("status")), "hard": hard}
    return {**quota, "spec": {**mapping(quota.get("spec")), "hard": hard}, "status": status}


def _is_said_by_containers(resource: str) -> bool:
    if resource == "requests.storage":
        return False
    return resource.startswith(("requests.", "limits.", "hugepages-")) or resource in _PLAIN


def refused_by(text: str) -> Object | None:
    """The quota that a refusal of the API server's speaks of; None if it speaks of none.

    It is as full as is said there. What it holds for is not said: the pod that was refused.
    """
    found = _REFUSED.search(text)
    if found is None:
        return None
    parts = {name: dict(_pairs(found[name])) for name in ("used", "limited")}
    return {
        "kind": "ResourceQuota",
        "metadata": {"name": found["name"]},
        "status": {"hard": parts["limited"], "used": parts["used"]},
    }


def usage(pod: Object) -> dict[str, Decimal]:
    """What a quota counts of a pod, as the API server's own evaluator does."""
    spec = mapping(pod.get("spec"))
    total: dict[str, Decimal] = {"pods": Decimal(1), "count/pods": Decimal(1)}
    for part in ("requests", "limits"):
        for name, amount in taken(spec, part).items():
            for key in _keys(part, name):
                total[key] = amount
    return total


def _keys(part: str, name: str) -> Iterator[str]:
    if part == "requests":
        yield f"requests.{name}"
        if name in _PLAIN or name.startswith("hugepages-"):
            yield name
    elif name in _PLAIN:
        yield f"limits.{name}"


# -- of a job ----------------------------------------------------------------------------------


class _Counted(NamedTuple):
    """Something that quotas count, and the pod by which one with scopes chooses."""

    amounts: Amounts
    pod: Object | None = None  # None: scopes are of pods alone, and do not hold for it


class _Job(NamedTuple):
    """What is made of a spec."""

    driver: Object
    executor: Object
    trial: Object | None  # of a preflight; None if the spec cannot be given to a pod
    claim: Amounts  # that Spark makes for an executor, and that the next one may have

    @staticmethod
    def of(meta: Meta, spec: JobSpec, ranges: list[Object]) -> "_Job":
        """Of any attempt."""
        order = StartOrder(attempt=1, cluster_id="quota", job_uid=meta.uid)
        refs, task = JobRefs(meta, spec), StoreTask("quota", "Preflight")
        try:
            trial = store_task_pod(refs, request_of(refs, task, order.cluster_id), 1)
        except Invalid:
            trial = None
        return _Job(
            with_defaults(driver_pod(meta, spec, "", order), ranges),
            with_defaults(executor_pod(meta, spec, "", 1), ranges),
            with_defaults(trial, ranges) if trial is not None else None,
            dict(_reused(spec)),
        )


def _reused(spec: JobSpec) -> Iterator[tuple[str, Decimal]]:
    local = spec.state.local
    if _are_reused(spec) and local.size is not None:
        yield from _claim(local.size.value, local.storage_class_name or "")


def _claims_of(pod: Object) -> dict[str, Decimal]:
    """Of the volumes that come and go with a pod."""
    total: dict[str, Decimal] = {}
    for volume in items(mapping(pod.get("spec")), "volumes"):
        template = mapping(mapping(volume.get("ephemeral")).get("volumeClaimTemplate"))
        spec = mapping(template.get("spec"))
        if spec:
            size = said(spec, "requests").get("storage", _NONE)
            add(total, dict(_claim(size, str(spec.get("storageClassName") or ""))))
    return total


def _claim(size: Decimal, storage_class: str) -> Iterator[tuple[str, Decimal]]:
    prefixes = [""]
    if storage_class:
        prefixes.append(f"{storage_class}.storageclass.storage.k8s.io/")
    for prefix in prefixes:
        yield f"{prefix}requests.storage", size
        yield f"{prefix}persistentvolumeclaims", Decimal(1)
    yield "count/persistentvolumeclaims", Decimal(1)


def _objects(kinds: Mapping[str, int]) -> dict[str, Decimal]:
    return {
        key: Decimal(number) for kind, number in kinds.items() for key in (kind, f"count/{kind}")
    }


def _is_left(spec: JobSpec, resource: str) -> bool:
    """Whether an ended driver may have some of it, until its pod is deleted."""
    claim = resource.endswith(("requests.storage", "persistentvolumeclaims"))
    return resource.removeprefix("count/") in _OF_ATTEMPTS or (claim and _are_reused(spec))


def _are_reused(spec: JobSpec) -> bool:
    return spec.state.local.type == "ReusedPVC"


class _Asked(NamedTuple):
    """So many of what a job is made of."""

    parts: tuple[tuple[_Counted, int], ...] = ()

    @staticmethod
    def of(job: _Job, drivers: int, executors: int, reused: int) -> "_Asked":
        """Of so many drivers, executors and claims.

        Args:
            reused: claims that outlive their executors.
        """
        parts = [
            (_Counted(usage(job.driver), job.driver), drivers),
            (_Counted(usage(job.executor), job.executor), executors),
            (_Counted(_claims_of(job.driver)), drivers),
            (_Counted(_claims_of(job.executor)), executors),
            (_Counted(job.claim), reused),
            (_Counted(_objects(_OF_ATTEMPTS)), drivers),
        ]
        return _Asked(tuple(parts))

    @staticmethod
    def of_trial(job: _Job) -> "_Asked":
        """Of a preflight's pod."""
        pod = job.trial
        return _Asked(((_Counted(usage(pod), pod), 1),) if pod is not None else ())

    def counted(self, quota: Object) -> Amounts:
        """What a quota counts of them: it may hold for one kind of pods alone."""
        total, scoped = dict[str, Decimal](), any(_scopes(quota))
        for one, number in self.parts:
            holds = _holds_for(quota, one.pod) if one.pod is not None else not scoped
            if number and holds:
                add(total, {name: amount * number for name, amount in one.amounts.items()})
        return total


# -- quotas ------------------------------------------------------------------------------------


class _Lack(NamedTuple):
    """A resource of which a quota has too little."""

    quota: Object
    resource: str
    wanted: Decimal
    hard: object

    def __str__(self) -> str:
        name, amount = self.quota["metadata"]["name"], shown(self.resource, self.wanted)
        return f"ResourceQuota {name} has no room for {self.resource} {amount} of {self.hard}"


def _lacking(quotas: Iterable[Object], need: _Asked, held: _Asked) -> Iterator[_Lack]:
    for quota in quotas:
        hard, used = _hard(quota), mapping(mapping(quota.get("status")).get("used"))
        wanted, own = need.counted(quota), held.counted(quota)
        for name in sorted(hard.keys() & wanted.keys()):
            free = amount_of(hard[name]) - amount_of(used.get(name, "0"))
            more = wanted[name] - own.get(name, _NONE)
            if more > max(free, _NONE):
                yield _Lack(quota, name, wanted[name], hard[name])


class _Silence(NamedTuple):
    """A container that does not say what a quota asks of all of them."""

    quota: str
    resource: str
    container: str

    def __str__(self) -> str:
        return (
            f"ResourceQuota {self.quota} asks every container for {self.resource}, and "
            f"{self.container} says none: set it in the podTemplate, or by a LimitRange's default"
        )


def _silent(quotas: Iterable[Object], job: _Job) -> Iterator[_Silence]:
    """What the API server refuses pods for, however much room there is."""
    for quota in quotas:
        asked = _hard(quota).keys() & _TO_BE_SAID.keys()
        for pod in (job.driver, job.executor):
            if not _holds_for(quota, pod):
                continue
            spec = pod["spec"]
            for resource in sorted(asked):
                part, name = _TO_BE_SAID[resource]
                for one in (*items(spec, "initContainers"), *items(spec, "containers")):
                    if name not in said(one, part) and name not in said(spec, part):
                        yield _Silence(quota["metadata"]["name"], resource, str(one.get("name")))


def _hard(quota: Object) -> Mapping[str, Any]:
    """Its bounds."""
    return mapping(
        mapping(quota.get("status")).get("hard") or mapping(quota.get("spec")).get("hard")
    )


def _texts(lacks: Iterable[_Lack | _Silence]) -> str:
    return "; ".join(dict.fromkeys(map(str, lacks)))


def _holds_for(quota: Object, pod: Object) -> bool:
    """Whether it counts a pod."""
    return all(_is_chosen(one, pod) for one in _scopes(quota))


def _scopes(quota: Object) -> Iterator[Mapping[str, Any]]:
    rules = mapping(quota.get("spec"))
    for scope in rules.get("scopes") or ():
        yield {"scopeName": scope, "operator": "Exists"}
    yield from items(mapping(rules.get("scopeSelector")), "matchExpressions")


def _is_chosen(expression: Mapping[str, Any], pod: Object) -> bool:
    scope, how, spec = expression.get("scopeName"), expression.get("operator"), pod["spec"]
    ends = spec.get("activeDeadlineSeconds") is not None
    if scope == "PriorityClass":
        return _is_of_class(expression, how, spec.get("priorityClassName") or "")
    # Pods of a job always ask for something.
    held: dict[object, bool] = {
        "Terminating": ends,
        "NotTerminating": not ends,
        "NotBestEffort": True,
        "CrossNamespacePodAffinity": _looks_beyond(spec),
    }
    return held.get(scope, False)


def _looks_beyond(spec: Mapping[str, Any]) -> bool:
    """Whether it is placed by pods of other namespaces."""
    affinity = mapping(spec.get("affinity"))
    rules = [mapping(affinity.get(one)) for one in ("podAffinity", "podAntiAffinity")]
    terms = [
        term
        for rule in rules
        for term in (
            *items(rule, "requiredDuringSchedulingIgnoredDuringExecution"),
            *(
                mapping(one.get("podAffinityTerm"))
                for one in items(rule, "preferredDuringSchedulingIgnoredDuringExecution")
            ),
        )
    ]
    return any(one.get("namespaces") or one.get("namespaceSelector") is not None for one in terms)


def _is_of_class(expression: Mapping[str, Any], how: object, name: str) -> bool:
    if how in ("In", "NotIn"):
        return (name in (expression.get("values") or ())) == (how == "In")
    return bool(name) == (how == "Exists")


# -- amounts -----------------------------------------------------------------------------------


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    """`pods=1,requests.cpu=2` by name."""
    for part in text.split(","):
        name, _, value = part.partition("=")
        if value:
            yield name, value
