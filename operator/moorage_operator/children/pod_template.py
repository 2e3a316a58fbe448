"""Merges the pod of a user's podTemplate with ours.

Lists go by what names their items: containers, volumes and variables by name, mounts by path, ports
by number. What the contract between operator and driver rests on is ours, whatever the template
says; resources beyond CPU and memory, security contexts, scheduling and further containers are the
user's. Neither argument is changed, and the result shares nothing with them.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Object = dict[str, Any]

# Of a pod's spec; a template's values are dropped, not merged.
_NEVER = ("activeDeadlineSeconds", "ephemeralContainers", "serviceAccount")
# Of a container that we own; a template cannot add what we leave out.
_OWNED_OF_CONTAINER = (
    "args",
    "command",
    "image",
    "imagePullPolicy",
    "readinessProbe",
    "restartPolicy",
    "terminationMessagePath",
    "terminationMessagePolicy",
)


def merged_pod(ours: Mapping[str, Any], template: Mapping[str, Any]) -> Object:
    """Return our pod with everything from the template that the contract leaves open."""
    pod = copy.deepcopy(dict(ours))
    given = copy.deepcopy(dict(template))
    pod["metadata"] = _metadata(pod["metadata"], _mapping(given.get("metadata")))
    pod["spec"] = _spec(pod["spec"], _mapping(given.get("spec")))
    return pod


def _metadata(ours: Object, given: Object) -> Object:
    """Labels and annotations; names and owners are not the template's to say."""
    for field in ("labels", "annotations"):
        both = {**_mapping(given.get(field)), **ours.get(field, {})}
        if both:
            ours[field] = both
    return ours


def _spec(ours: Object, given: Object) -> Object:
    spec = {key: value for key, value in given.items() if key not in _NEVER}
    spec |= {key: value for key, value in ours.items() if key not in _GENTLE}
    for key, merge in _GENTLE.items():
        if key in ours or key in given:
            spec[key] = merge(ours.get(key), given.get(key))
    return {key: value for key, value in spec.items() if value not in (None, [], {})}


def _user_first(ours: Any, given: Any) -> Any:
    return ours if given is None else given


def _fields(ours: Any, given: Any) -> Object:
    """A mapping in which the user's fields win."""
    return {**_mapping(ours), **_mapping(given)}


def _longest(ours: Any, given: Any) -> Any:
    """The longer of two times: a driver is never given less than its last checkpoint needs."""
    numbers = [n for n in (ours, given) if isinstance(n, int) and not isinstance(n, bool)]
    return max(numbers, default=None)


def _containers(ours: Any, given: Any) -> list[Object]:
    """Ours first: `kubectl logs` shows the first one."""
    theirs = _named(given)
    own = [_container(container, theirs.pop(container["name"], {})) for container in ours or ()]
    return [*own, *theirs.values()]


def _init_containers(ours: Any, given: Any) -> list[Object]:
    """The user's first: they may prepare volumes that ours needs."""
    theirs = _named(given)
    own = [_container(container, theirs.pop(container["name"], {})) for container in ours or ()]
    return [*theirs.values(), *own]


def _volumes(ours: Any, given: Any) -> list[Object]:
    return list({**_named(given), **_named(ours)}.values())


def _container(ours: Object, given: Object) -> Object:
    """One of our containers with what a template adds to it."""
    result = {key: value for key, value in given.items() if key not in _OWNED_OF_CONTAINER}
    result |= ours
    result["env"] = _by(("name",), ours.get("env", ()), given.get("env"))
    result["ports"] = _ports(ours.get("ports", ()), given.get("ports"))
    result["volumeMounts"] = _by(
        ("mountPath",), ours.get("volumeMounts", ()), given.get("volumeMounts")
    )
    result["resources"] = _resources(ours.get("resources", {}), _mapping(given.get("resources")))
    result["securityContext"] = _fields(ours.get("securityContext"), given.get("securityContext"))
    return {key: value for key, value in result.items() if value not in (None, [], {})}


def _resources(ours: Object, given: Object) -> Object:
    """CPU and memory are the spec's; all else and a limit of CPU may come from the template."""
    # What it says of a resource is all that is said: a limit of its own below our request would be
    # no pod.
    result, fields = dict(given), ("requests", "limits")
    named = {name for field in fields for name in _mapping(given.get(field))} - {"cpu", "memory"}
    for field in fields:
        extra = {
            name: amount
            for name, amount in _mapping(given.get(field)).items()
            if name in named or (field, name) == ("limits", "cpu")
        }
        own = {name: amount for name, amount in ours.get(field, {}).items() if name not in named}
        result[field] = {**extra, **own}
    return {key: value for key, value in result.items() if value}


def _ports(ours: Sequence[Object], given: Any) -> list[Object]:
    """Ours, then those that clash with none of them in number or name."""
    numbers = {port["containerPort"] for port in ours}
    names = {port["name"] for port in ours}
    theirs = [
        port
        for port in _items(given)
        if isinstance(port.get("containerPort"), int)
        and port["containerPort"] not in numbers
        and str(port.get("name")) not in names
    ]
    return [*ours, *_by(("containerPort", "protocol"), (), theirs)]


def _by(keys: Sequence[str], ours: Iterable[Object], given: Any) -> list[Object]:
    """Ours in their order, then the template's of other keys; of two alike the last one."""
    first = {tuple(str(item.get(key)) for key in keys): item for item in ours}
    theirs = {
        tuple(str(item.get(key)) for key in keys): item
        for item in _items(given)
        if isinstance(item.get(keys[0]), str | int)
    }
    return [*first.values(), *(item for key, item in theirs.items() if key not in first)]


def _named(items: Any) -> dict[str, Object]:
    return {item["name"]: item for item in _items(items) if isinstance(item.get("name"), str)}


def _items(value: Any) -> list[Object]:
    """The mappings in a list; a template that is no pod is refused before, but never crashes."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _mapping(value: Any) -> Object:
    return dict(value) if isinstance(value, Mapping) else {}


_GENTLE = {
    "containers": _containers,
    "initContainers": _init_containers,
    "volumes": _volumes,
    "securityContext": _fields,
    "terminationGracePeriodSeconds": _longest,
    "automountServiceAccountToken": _user_first,
    "enableServiceLinks": _user_first,
}
"""Fields of a pod's spec in which both have a say; every other one is ours if we set it."""
