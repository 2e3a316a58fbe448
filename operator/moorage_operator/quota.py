"""Whether a namespace's ResourceQuotas have room for a job's pods, before these are made. Pure.

A quota lets pods be made one by one: what has no room is refused, by Spark again and again, and
nobody but the log of the driver says so. What is judged here is what the API server will judge, and
pods are counted as it counts them. It may be old by then: so it is said, and never taken for more
than a reason to wait. Texts name no amount that changes while the job waits.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any, NamedTuple

from moorage_api import JobSpec, Quantity
from moorage_api.driver import StartOrder
from moorage_api.sizing import executor_count
from moorage_operator.children.pods import driver_pod, executor_pod
from moorage_operator.ports import Object
from moorage_operator.world import Meta, Room

Usage = Mapping[str, Decimal]
"""By the name that a quota has for it, such as `requests.memory`."""

_REFUSED = re.compile(
    r"exceeded quota: (?P<name>[^,]+), requested: (?P<requested>\S+), "
    r"used: (?P<used>\S+), limited: (?P<limited>\S+)"
)
_PLAIN = ("cpu", "memory", "ephemeral-storage")
"""What a quota also knows without `requests.`, and of which it knows limits."""
_OF_A_POD = ("cpu", "memory")
"""What a pod may say for all its containers together; huge pages beside them."""
_CLAIMS = ("EphemeralPVC", "ReusedPVC")
_MIB = 1 << 20


def room(
    quotas: Iterable[Object],
    meta: Meta,
    wanted: JobSpec,
    running: JobSpec | None,
    drivers: int,
    executors: int,
) -> Room:
    """What the quotas lack for the pods of a spec.

    Args:
        running: what the job's living pods were made of, which make room or stay.
        drivers: how many of them are drivers.
        executors: how many are executors.
    """
    applying, known = list(quotas), running or wanted
    count = executor_count(wanted.executor, wanted.scaling.parallelism)
    before = executor_count(known.executor, known.scaling.parallelism)
    new, old = _Job.of(meta, wanted), _Job.of(meta, known)
    held = _Asked(old, drivers, executors, _claims(known, drivers, executors, before))
    whole, once = _Asked(new, 1, count, count), _Asked(old, 1, before, before)
    lacks = list(_lacking(applying, whole, held))
    grown = [one for one in lacks if one.wanted > once.of(one.quota).get(one.resource, _NONE)]
    return Room(
        start=_said(_lacking(applying, _Asked(new, 1, 1, 1), held)),
        whole=_said(lacks),
        growth=_said(grown) if running else "",
        beside=_said(_lacking(applying, whole, _Asked(old, 0, 0, 0))),
        claims=_stay_with_drivers(known) and any(_is_claim(one.resource) for one in lacks),
    )


def refused_by(said: str) -> Object | None:
    """The quota that a refusal of the API server's speaks of; None if it speaks of none.

    It is as full as is said there. What it holds for is not said: the pod that was refused.
    """
    found = _REFUSED.search(said)
    if found is None:
        return None
    parts = {name: dict(_pairs(found[name])) for name in ("used", "limited")}
    return {
        "kind": "ResourceQuota",
        "metadata": {"name": found["name"]},
        "status": {"hard": parts["limited"], "used": parts["used"]},
    }


def usage(pod: Object) -> dict[str, Decimal]:
    """What a quota counts of a pod, as the API server's own evaluator does.

    Requests that are not said are the limits. Containers that only begin a pod count where one of
    them, with those that stay beside it, takes more than all that run later.
    """
    spec = _mapping(pod.get("spec"))
    total: dict[str, Decimal] = {"pods": Decimal(1), "count/pods": Decimal(1)}
    for part in ("requests", "limits"):
        for name, amount in _together(spec, part).items():
            for key in _keys(part, name):
                total[key] = amount
    return total


# -- what pods take ----------------------------------------------------------------------------

_NONE = Decimal(0)


def _together(spec: Mapping[str, Any], part: str) -> dict[str, Decimal]:
    """Of a pod, by resource."""
    beside: dict[str, Decimal] = defaultdict(Decimal)
    most: dict[str, Decimal] = defaultdict(Decimal)
    for one in _items(spec, "initContainers"):
        own = _resources(one, part)
        stays = one.get("restartPolicy") == "Always"
        if stays:
            _add(beside, own)
        for name in own.keys() | beside.keys():
            amount = beside[name] + (_NONE if stays else own.get(name, _NONE))
            most[name] = max(most[name], amount)
    total: dict[str, Decimal] = defaultdict(Decimal)
    _add(total, beside)
    for one in _items(spec, "containers"):
        _add(total, _resources(one, part))
    found = {name: max(total[name], most[name]) for name in total.keys() | most.keys()}
    whole = _resources(spec, part)
    found |= {k: v for k, v in whole.items() if k in _OF_A_POD or k.startswith("hugepages-")}
    overhead = {k: _amount(v) for k, v in _mapping(spec.get("overhead")).items()}
    _add(found, {k: v for k, v in overhead.items() if part == "requests" or k in found})
    return found


def _add(total: dict[str, Decimal], more: Usage) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, _NONE) + amount


def _resources(holder: Mapping[str, Any], part: str) -> dict[str, Decimal]:
    given = _mapping(holder.get("resources"))
    amounts = {name: _amount(value) for name, value in _mapping(given.get(part)).items()}
    if part == "requests":
        limits = _mapping(given.get("limits"))
        amounts = {name: _amount(value) for name, value in limits.items()} | amounts
    return amounts


def _keys(part: str, name: str) -> Iterator[str]:
    if part == "requests":
        yield f"requests.{name}"
        if name in _PLAIN or name.startswith("hugepages-"):
            yield name
    elif name in _PLAIN:
        yield f"limits.{name}"


# -- of a job ----------------------------------------------------------------------------------


class _Job(NamedTuple):
    """The pods that are made of a spec, and what each takes."""

    driver: Object
    executor: Object
    of_driver: Usage
    of_executor: Usage
    of_claim: Usage

    @staticmethod
    def of(meta: Meta, spec: JobSpec) -> "_Job":
        """Those of any attempt."""
        order = StartOrder(attempt=1, cluster_id="quota", job_uid=meta.uid)
        driver, executor = driver_pod(meta, spec, "", order), executor_pod(meta, spec, "", 1)
        return _Job(driver, executor, usage(driver), usage(executor), dict(_claim(spec)))


def _claim(spec: JobSpec) -> Iterator[tuple[str, Decimal]]:
    """What the claim for an executor's state takes, where it has one."""
    local = spec.state.local
    if local.type not in _CLAIMS or local.size is None:
        return
    prefixes = [""]
    if local.storage_class_name:
        prefixes.append(f"{local.storage_class_name}.storageclass.storage.k8s.io/")
    for prefix in prefixes:
        yield f"{prefix}requests.storage", local.size.value
        yield f"{prefix}persistentvolumeclaims", Decimal(1)
    yield "count/persistentvolumeclaims", Decimal(1)


def _is_claim(resource: str) -> bool:
    return resource.endswith(("requests.storage", "persistentvolumeclaims"))


def _claims(spec: JobSpec, drivers: int, executors: int, whole: int) -> int:
    """How many the living pods have; those that are reused stay with their driver."""
    return max(executors, whole) if _stay_with_drivers(spec) and drivers else executors


def _stay_with_drivers(spec: JobSpec) -> bool:
    return spec.state.local.type == "ReusedPVC"


class _Asked(NamedTuple):
    """So many pods and claims of a job."""

    job: _Job
    drivers: int
    executors: int
    claims: int

    def of(self, quota: Object) -> Usage:
        """What a quota counts of them: it may hold for one kind of pods alone."""
        job, total = self.job, dict[str, Decimal]()
        parts = [
            (job.of_driver, self.drivers if _holds_for(quota, job.driver) else 0),
            (job.of_executor, self.executors if _holds_for(quota, job.executor) else 0),
            # Scopes are of pods alone.
            (job.of_claim, 0 if any(_scopes(quota)) else self.claims),
        ]
        for one, number in parts:
            if number:
                _add(total, {name: amount * number for name, amount in one.items()})
        return total


# -- quotas ------------------------------------------------------------------------------------


class _Lack(NamedTuple):
    """A resource of which a quota has too little."""

    quota: Object
    resource: str
    wanted: Decimal
    hard: object

    def __str__(self) -> str:
        name, amount = self.quota["metadata"]["name"], _shown(self.resource, self.wanted)
        return f"ResourceQuota {name} has no room for {self.resource} {amount} of {self.hard}"


def _lacking(quotas: Iterable[Object], need: _Asked, held: _Asked) -> Iterator[_Lack]:
    for quota in quotas:
        status = _mapping(quota.get("status"))
        hard = status.get("hard") or _mapping(quota.get("spec")).get("hard") or {}
        used, wanted, own = _mapping(status.get("used")), need.of(quota), held.of(quota)
        for name in sorted(hard.keys() & wanted.keys()):
            free = _amount(hard[name]) - _amount(used.get(name, "0"))
            more = wanted[name] - own.get(name, _NONE)
            if more > max(free, _NONE):
                yield _Lack(quota, name, wanted[name], hard[name])


def _said(lacks: Iterable[_Lack]) -> str:
    return "; ".join(map(str, lacks))


def _holds_for(quota: Object, pod: Object) -> bool:
    """Whether it counts a pod."""
    return all(_is_chosen(one, pod) for one in _scopes(quota))


def _scopes(quota: Object) -> Iterator[Mapping[str, Any]]:
    rules = _mapping(quota.get("spec"))
    for scope in rules.get("scopes") or ():
        yield {"scopeName": scope, "operator": "Exists"}
    yield from _items(_mapping(rules.get("scopeSelector")), "matchExpressions")


def _is_chosen(expression: Mapping[str, Any], pod: Object) -> bool:
    scope, how, spec = expression.get("scopeName"), expression.get("operator"), pod["spec"]
    ends = spec.get("activeDeadlineSeconds") is not None
    if scope == "PriorityClass":
        return _is_of_class(expression, how, spec.get("priorityClassName") or "")
    # Pods of a job always ask for something. Of affinity beyond the namespace nothing is known.
    return {"Terminating": ends, "NotTerminating": not ends, "NotBestEffort": True}.get(
        str(scope), False
    )


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


def _mapping(value: Any) -> Mapping[str, Any]:
    """A template's part; one of another shape has nothing, and the API server will say so."""
    return value if isinstance(value, Mapping) else {}


def _items(parent: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    found = parent.get(name)
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []


def _amount(text: object) -> Decimal:
    """A quantity; of one that nobody can read, none."""
    try:
        return Quantity(str(text)).value
    except ValueError:
        return _NONE


def _shown(name: str, amount: Decimal) -> str:
    """As people write it: memory in Mi, cores in thousandths where they are no whole ones."""
    if name.endswith(("memory", "storage")):
        return f"{-(-int(amount) // _MIB)}Mi"
    return f"{int(amount)}" if amount == int(amount) else f"{int(amount * 1000)}m"
