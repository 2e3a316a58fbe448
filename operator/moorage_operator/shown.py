"""What is used of objects that are listed and watched; the rest is passed over while it is decoded.

Of a pod as large as real ones a tenth is used, of our own objects all but who manages which field.
"""

from typing import Any, TypedDict

import msgspec

from moorage_api.reserved import TLS_VOLUME
from moorage_operator.children.names import REVISION_ANNOTATION
from moorage_operator.ports import Kind, Object

_UNUSED_ANNOTATION = "kubectl.kubernetes.io/last-applied-configuration"


class _OwnMeta(TypedDict, total=False):
    """All of it but `managedFields`."""

    name: Any
    generateName: Any
    namespace: Any
    uid: Any
    resourceVersion: Any
    generation: Any
    labels: Any
    annotations: Any
    ownerReferences: Any
    finalizers: Any
    creationTimestamp: Any
    deletionTimestamp: Any
    deletionGracePeriodSeconds: Any


class _Own(TypedDict, total=False):
    metadata: _OwnMeta
    spec: Any
    status: Any


class _Owner(TypedDict, total=False):
    controller: Any
    uid: Any


class _PodMeta(TypedDict, total=False):
    name: Any
    namespace: Any
    uid: Any
    resourceVersion: Any
    labels: Any
    annotations: dict[str, Any] | None
    ownerReferences: list[_Owner] | None
    creationTimestamp: Any
    deletionTimestamp: Any
    deletionGracePeriodSeconds: Any


class _Named(TypedDict, total=False):
    name: Any


class _Volume(_Named, total=False):
    secret: Any


class _PodSpec(TypedDict, total=False):
    nodeName: Any
    terminationGracePeriodSeconds: Any
    containers: list[_Named] | None
    volumes: list[_Volume] | None


class _Container(_Named, total=False):
    state: Any
    lastState: Any


class _PodStatus(TypedDict, total=False):
    phase: Any
    reason: Any
    message: Any
    podIP: Any
    startTime: Any
    conditions: Any
    containerStatuses: list[_Container] | None
    initContainerStatuses: list[_Container] | None


class _Pod(TypedDict, total=False):
    metadata: _PodMeta
    spec: _PodSpec
    status: _PodStatus


_USED: dict[Kind, Any] = {"Pod": _Pod, "StatefulSparkJob": _Own, "StatefulSparkSnapshot": _Own}


class _ListMeta(msgspec.Struct, frozen=True, rename={"after": "continue"}):
    after: str | None = None


def _list_of(one: Any) -> Any:
    items = ("items", list[one] | None, None)
    return msgspec.defstruct("_List", [items, ("metadata", _ListMeta, _ListMeta())])


_LISTS = {kind: msgspec.json.Decoder(_list_of(used)) for kind, used in _USED.items()}
_ANY_LIST = msgspec.json.Decoder(_list_of(dict[str, Any]))


def page_of(kind: Kind, data: bytes) -> tuple[list[Object], str]:
    """The objects of a page of a list, as far as they are used, and what to go on with after it.

    Raises:
        ValueError: it is no page of a list.
    """
    try:
        found = _LISTS.get(kind, _ANY_LIST).decode(data)
    except msgspec.ValidationError:
        # Something in it has another form than any API server gives it: its reader's to judge.
        found = _ANY_LIST.decode(data)
    return found.items or [], found.metadata.after or ""


def used_of(kind: Kind, body: Object) -> Object:
    """What is used of an object; all of one that has another form than it should."""
    try:
        used: Object = msgspec.convert(body, _USED[kind])
    except msgspec.ValidationError:
        return body
    meta = used["metadata"]
    notes = meta.get("annotations") or {}
    if kind == "Pod":
        meta["annotations"] = {key: notes[key] for key in notes if key == REVISION_ANNOTATION}
        volumes = used.get("spec", {}).get("volumes")
        if volumes:
            used["spec"]["volumes"] = [one for one in volumes if one.get("name") == TLS_VOLUME]
    elif _UNUSED_ANNOTATION in notes:
        meta["annotations"] = {key: notes[key] for key in notes if key != _UNUSED_ANNOTATION}
    return used
