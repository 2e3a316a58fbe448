"""What a pod takes, as the API server counts it. Pure.

Called for quotas, which count pods before they are made, and for nodes, which hold them.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any

from moorage_api import Quantity
from moorage_operator.ports import Object

Amounts = Mapping[str, Decimal]
"""By the name of the resource, such as `memory`."""

_OF_A_POD = ("cpu", "memory")
"""What a pod may say for all its containers together; huge pages beside them."""
_NONE = Decimal(0)
_MIB = 1 << 20


def with_defaults(pod: Object, ranges: Iterable[Object]) -> Object:
    """The pod with what LimitRanges put into containers that do not say it, as it is admitted."""
    defaults = [one for found in ranges for one in _of_containers(found)]
    if not defaults:
        return pod
    spec = dict(mapping(pod.get("spec")))
    for name in ("initContainers", "containers"):
        if name in spec:
            spec[name] = [_with_defaults(one, defaults) for one in items(spec, name)]
    return {**pod, "spec": spec}


def taken(spec: Mapping[str, Any], part: str) -> dict[str, Decimal]:
    """What a pod of this spec takes, by resource: its `requests` or its `limits`.

    Requests that are not said are the limits. Containers that only begin a pod count where one of
    them, with those that stay beside it, takes more than all that run later.
    """
    beside: dict[str, Decimal] = defaultdict(Decimal)
    most: dict[str, Decimal] = defaultdict(Decimal)
    for one in items(spec, "initContainers"):
        own = said(one, part)
        stays = one.get("restartPolicy") == "Always"
        if stays:
            add(beside, own)
        for name in own.keys() | beside.keys():
            amount = beside[name] + (_NONE if stays else own.get(name, _NONE))
            most[name] = max(most[name], amount)
    total: dict[str, Decimal] = defaultdict(Decimal)
    add(total, beside)
    for one in items(spec, "containers"):
        add(total, said(one, part))
    found = {name: max(total[name], most[name]) for name in total.keys() | most.keys()}
    whole = said(spec, part)
    found |= {k: v for k, v in whole.items() if k in _OF_A_POD or k.startswith("hugepages-")}
    overhead = {k: amount_of(v) for k, v in mapping(spec.get("overhead")).items()}
    add(found, {k: v for k, v in overhead.items() if part == "requests" or k in found})
    return found


def add(total: dict[str, Decimal], more: Amounts) -> None:
    """Add them up."""
    for name, amount in more.items():
        total[name] = total.get(name, _NONE) + amount


def said(holder: Mapping[str, Any], part: str) -> dict[str, Decimal]:
    """What a container says, or a pod for all of them."""
    given = mapping(holder.get("resources"))
    amounts = {name: amount_of(value) for name, value in mapping(given.get(part)).items()}
    if part == "requests":
        limits = mapping(given.get("limits"))
        amounts = {name: amount_of(value) for name, value in limits.items()} | amounts
    return amounts


def mapping(value: Any) -> Mapping[str, Any]:
    """A template's part; one of another shape has nothing, and the API server will say so."""
    return value if isinstance(value, Mapping) else {}


def items(parent: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """The parts of a list that are mappings."""
    found = parent.get(name)
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []


def amount_of(text: object) -> Decimal:
    """A quantity; of one that nobody can read, none."""
    try:
        return Quantity(str(text)).value
    except ValueError:
        return _NONE


def shown(name: str, amount: Decimal) -> str:
    """As people write it: memory in Mi, cores in thousandths where they are no whole ones."""
    if name.endswith(("memory", "storage")):
        return f"{-(-int(amount) // _MIB)}Mi"
    return f"{int(amount)}" if amount == int(amount) else f"{int(amount * 1000)}m"


def _of_containers(found: Object) -> Iterator[Mapping[str, Any]]:
    for one in items(mapping(found.get("spec")), "limits"):
        if one.get("type") == "Container":
            yield one


def _with_defaults(container: Mapping[str, Any], defaults: list[Mapping[str, Any]]) -> Object:
    # Limits that are said are requests by then, and a default changes neither.
    given = mapping(container.get("resources"))
    limits = dict(mapping(given.get("limits")))
    requests = {**limits, **mapping(given.get("requests"))}
    for one in defaults:
        limits = {**mapping(one.get("default")), **limits}
        requests = {**mapping(one.get("defaultRequest")), **requests}
    return {**container, "resources": {**given, "limits": limits, "requests": requests}}
