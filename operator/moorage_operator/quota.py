"""Whether a namespace's ResourceQuotas have room for a job's pods, before these are made. Pure.

A quota lets pods be made one by one: what has no room is refused, by Spark again and again, and
nobody but the log of the driver says so. What is judged here is what the API server will judge. It
may be old by then: so it is said, and never taken for more than a reason to wait.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any

from moorage_api import JobSpec, Quantity
from moorage_api.driver import StartOrder
from moorage_api.reserved import EXECUTOR_CONTAINER
from moorage_api.sizing import executor_count, executor_memory
from moorage_operator.children.pods import driver_pod, executor_template
from moorage_operator.ports import Object
from moorage_operator.world import Meta, Room

Demand = Mapping[str, Decimal]
"""By the name that a quota has for it, such as `requests.memory`."""

_PLAIN = ("cpu", "memory", "ephemeral-storage")
_FITTING = ("NotTerminating", "NotBestEffort")
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
    held = _pods(meta, known, drivers, executors)
    whole = _pods(meta, wanted, 1, count)
    before = executor_count(known.executor, known.scaling.parallelism)
    once = _pods(meta, known, 1, before)
    grown = {name for name, amount in whole.items() if amount > once.get(name, Decimal(0))}
    lacks = list(_lacking(applying, wanted, whole, held))
    least = _lacking(applying, wanted, _pods(meta, wanted, 1, 1), held)
    return Room(
        start="; ".join(text for _, text in least),
        whole="; ".join(text for _, text in lacks),
        growth="; ".join(text for name, text in lacks if name in grown) if running else "",
    )


def _pods(meta: Meta, spec: JobSpec, drivers: int, executors: int) -> dict[str, Decimal]:
    order = StartOrder(attempt=1, cluster_id="quota", job_uid=meta.uid)
    total: dict[str, Decimal] = defaultdict(Decimal)
    driver = _pod(driver_pod(meta, spec, "", order), {})
    memory = Decimal(executor_memory(spec.executor).total * _MIB)
    cpu = Quantity(str(spec.executor.cpu_request or spec.executor.cores)).value
    # What Spark adds to its container of the template.
    added = {"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": memory}}
    executor = _pod(executor_template(meta, spec, "", 1), added)
    local = spec.state.local
    if local.type in ("EphemeralPVC", "ReusedPVC") and local.size is not None:
        executor["requests.storage"] = local.size.value
        executor["persistentvolumeclaims"] = Decimal(1)
    for one, number in ((driver, drivers), (executor, executors)):
        for name, amount in one.items():
            total[name] += amount * number
    return total


def _pod(body: Object, added: Mapping[str, Mapping[str, Decimal]]) -> dict[str, Decimal]:
    """What one pod takes; containers that only begin it are never more than the others here."""
    spec = body["spec"]
    found: dict[str, Decimal] = {"pods": Decimal(1), "count/pods": Decimal(1)}
    beside = [
        one for one in spec.get("initContainers") or () if one.get("restartPolicy") == "Always"
    ]
    for container in [*spec["containers"], *beside]:
        given = mapping(container.get("resources"))
        for part in ("requests", "limits"):
            amounts = {name: _amount(value) for name, value in mapping(given.get(part)).items()}
            if container["name"] == EXECUTOR_CONTAINER:
                amounts |= added.get(part, {})
            for name, amount in amounts.items():
                for key in _keys(part, name):
                    found[key] = found.get(key, Decimal(0)) + amount
    return found


def _keys(part: str, name: str) -> Iterator[str]:
    yield f"{part}.{name}"
    if part == "requests" and name in _PLAIN:
        yield name


def _lacking(
    quotas: Iterable[Object], spec: JobSpec, need: Demand, held: Demand
) -> Iterator[tuple[str, str]]:
    for quota in quotas:
        if not _applies(quota, spec):
            continue
        hard = (
            (quota.get("status") or {}).get("hard") or (quota.get("spec") or {}).get("hard") or {}
        )
        used = (quota.get("status") or {}).get("used") or {}
        for name in sorted(hard.keys() & need.keys()):
            free = _amount(hard[name]) - _amount(used.get(name, "0"))
            short = need[name] - held.get(name, Decimal(0)) - free
            if short > 0 and need[name] > held.get(name, Decimal(0)):
                asked = need[name] - held.get(name, Decimal(0))
                who = quota["metadata"]["name"]
                left = _shown(name, max(free, Decimal(0)))
                lacks = f"ResourceQuota {who} lacks {name} {_shown(name, short)}"
                more = f"{_shown(name, asked)} more are needed, {left} of {hard[name]} are left"
                yield name, f"{lacks}: {more}"


def _applies(quota: Object, spec: JobSpec) -> bool:
    """Whether it counts a job's pods; one for pods of a priority, only those that have it."""
    rules = quota.get("spec") or {}
    if any(scope not in _FITTING for scope in rules.get("scopes") or ()):
        return False
    chosen = (rules.get("scopeSelector") or {}).get("matchExpressions") or ()
    return all(_chosen(one, spec) for one in chosen)


def _chosen(expression: Mapping[str, Any], spec: JobSpec) -> bool:
    scope, how = expression.get("scopeName"), expression.get("operator")
    if scope != "PriorityClass":
        return scope in _FITTING
    named = (spec.executor.pod_template.get("spec") or {}).get("priorityClassName", "")
    if how == "In":
        return named in (expression.get("values") or ())
    if how == "NotIn":
        return named not in (expression.get("values") or ())
    return bool(named) == (how == "Exists")


def mapping(value: Any) -> Mapping[str, Any]:
    """A template's part; one of another shape has nothing, and the API server will say so."""
    return value if isinstance(value, Mapping) else {}


def _amount(text: object) -> Decimal:
    """A quantity; of one that nobody can read, none."""
    try:
        return Quantity(str(text)).value
    except ValueError:
        return Decimal(0)


def _shown(name: str, amount: Decimal) -> str:
    """As people write it: memory in Mi, cores in thousandths where they are no whole ones."""
    if name.endswith(("memory", "storage")):
        return f"{-(-int(amount) // _MIB)}Mi"
    return f"{int(amount)}" if amount == int(amount) else f"{int(amount * 1000)}m"
