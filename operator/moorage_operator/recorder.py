"""What is written about an object: its status, labels, and events. Nothing is written twice.

A status is written by PUT with the resourceVersion that was read, so that whoever wrote in between
is noticed. It is kept far below what the API server takes: a status that could not be written would
stop the job's operator.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from moorage_api.driver import Report
from moorage_api.status import Condition
from moorage_operator.memory import Memory
from moorage_operator.plan import Event
from moorage_operator.ports import (
    ApiUnavailable,
    Cluster,
    ClusterError,
    Conflict,
    Forbidden,
    Invalid,
    NameTaken,
    NotFound,
    Object,
    WallClock,
)
from moorage_operator.world import JobWorld

_log = logging.getLogger("moorage.operator")

STATUS_BUDGET = 32_768
"""Bytes of JSON that a status may have."""

_COMPONENT = "moorage-operator"
_LONGEST_NOTE = 1024
_SHORTER = (1024, 256, 64, 16)
_EXACT = "profile"
"""Of a status: a spec is made of it, and known by its hash."""


class Written(Enum):
    """What came of writing a status."""

    UNCHANGED = "unchanged"
    PRUNED = "pruned"
    """Nothing of what is new in it is kept: the definition in the cluster is an older one."""
    WRITTEN = "written"
    MOVED = "moved"
    """The object changed meanwhile, but not its status: look again, and decide anew."""
    FOREIGN = "foreign"
    """Somebody else wrote the status."""
    GONE = "gone"


async def write_status(
    cluster: Cluster, body: Object, old: Report, new: Report
) -> tuple[Written, Object]:
    """Write `new` over the status in `body`, if it says anything else than `old`.

    Returns what came of it, and the object as it is now. After an error it may have been written.
    """
    data = fitted(new)
    if data == old.to_json():
        return Written.UNCHANGED, body
    version = body["metadata"]["resourceVersion"]
    try:
        kept = await cluster.replace_status(_status_body(body, data))
    except NotFound:
        return Written.GONE, body
    except Conflict:
        meta = body["metadata"]
        found = await cluster.get(body["kind"], meta["namespace"], meta["name"])
    else:
        # A write that changes nothing keeps the version, and ours did change something: so what
        # is new in it was taken out by a definition that does not know it.
        same = kept["metadata"]["resourceVersion"] == version
        return (Written.PRUNED if same else Written.WRITTEN), kept
    if found is None or found["metadata"]["uid"] != meta["uid"]:
        return Written.GONE, body
    if found.get("status") == data:
        # An earlier try had gone through, and only its answer was lost.
        return Written.WRITTEN, found
    same = (found.get("status") or {}) == (body.get("status") or {})
    return (Written.MOVED if same else Written.FOREIGN), found


async def write_condition(cluster: Cluster, body: Object, said: Condition) -> tuple[bool, Object]:
    """Write one condition into a status whose rest cannot be read, and stays as it is.

    Returns whether that was needed and could be done, and the object as it is now.
    """
    raw = body.get("status") or {}
    known = raw.get("conditions") or []
    if not isinstance(known, list) or not all(isinstance(one, dict) for one in known):
        return False, body
    data = said.to_json()
    old: dict[str, Any] = next((one for one in known if one.get("type") == said.type), {})
    if all(old.get(key) == data[key] for key in ("status", "reason", "message")):
        return False, body
    if old.get("status") == data["status"] and "lastTransitionTime" in old:
        data["lastTransitionTime"] = old["lastTransitionTime"]
    conditions = [one for one in known if one is not old] + [data]
    try:
        status = {**raw, "conditions": conditions}
        return True, await cluster.replace_status(_status_body(body, status))
    except (Conflict, NotFound, Invalid) as error:
        # Somebody wrote in between; or the definition takes no status as it is there.
        _log.warning("a condition was not written: reason=%s error=%s", said.reason, error)
        return False, body


def fitted(status: Report) -> dict[str, Any]:
    """The status as JSON data, within the budget.

    What became of older versions goes first, the oldest before the others; then texts are cut
    shorter and shorter. What the job goes by, such as its profile, stays as it is.
    """
    data: dict[str, Any] = status.to_json()
    while len(data.get("revisions") or ()) > 1 and not _fits(data):
        data = {**data, "revisions": data["revisions"][1:]}
    for longest in _SHORTER:
        if _fits(data):
            break
        data = {key: _cut(one, longest, key) if key != _EXACT else one for key, one in data.items()}
    return data


def _fits(data: dict[str, Any]) -> bool:
    return len(json.dumps(data)) <= STATUS_BUDGET


def _cut(value: Any, longest: int, key: str = "") -> Any:
    """Shorten messages, at any depth; names, times and paths stay as they are."""
    if isinstance(value, dict):
        return {name: _cut(inner, longest, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [_cut(inner, longest, key) for inner in value]
    is_message = isinstance(value, str) and key.lower().endswith("message")
    return f"{value[: longest - 1]}…" if is_message and len(value) > longest else value


async def label(cluster: Cluster, body: Object, labels: Mapping[str, str]) -> tuple[bool, Object]:
    """Give the object these labels; say whether it lacked any, and return it as it is now."""
    meta = body["metadata"]
    if all((meta.get("labels") or {}).get(key) == value for key, value in labels.items()):
        return False, body
    patch = {"metadata": {"uid": meta["uid"], "labels": dict(labels)}}
    return True, await cluster.patch(body["kind"], meta["namespace"], meta["name"], patch)


def _status_body(body: Object, data: dict[str, Any]) -> Object:
    meta = body["metadata"]
    # With the version the server refuses a status that rests on an older one.
    identity = ("name", "namespace", "uid", "resourceVersion")
    return {
        "apiVersion": body["apiVersion"],
        "kind": body["kind"],
        "metadata": {key: meta[key] for key in identity},
        "spec": body.get("spec", {}),
        "status": data,
    }


@dataclass(frozen=True, slots=True)
class Teller:
    """Tells events, each once."""

    cluster: Cluster
    clock: WallClock
    may_act: Callable[[], bool]  # False while another process may be the leader
    told: Callable[[str, str], None] = lambda _kind, _reason: None  # each that is new

    async def tell(self, body: Object, memory: Memory, events: Iterable[Event]) -> None:
        """Events are told once; one that cannot be told now is told with a later pass."""
        waiting = memory.untold(events)
        while waiting and self.may_act():
            try:
                await self._make(body, waiting[0])
            except ClusterError as error:
                _log.warning("an event was not told: reason=%s error=%s", waiting[0].reason, error)
                if isinstance(error, ApiUnavailable):
                    return
            memory.told(waiting.pop(0))

    async def tell_rival(self, world: JobWorld, memory: Memory) -> None:
        """The other job with this one's directory is told as well, once; its status is its own."""
        rival, meta = world.directory_rival, world.meta
        if rival == memory.rival:
            return
        namespace, _, name = rival.partition("/")
        text = (
            f"{meta.namespace}/{meta.name} names this job's checkpoint directory and is refused; "
            "give it one of its own, or delete one of the two"
        )
        event = Event("Warning", "CheckpointDirConflict", text, key=meta.uid)
        try:
            body = await self.cluster.get("StatefulSparkJob", namespace, name) if rival else None
            if body is not None:
                await self._make(body, event)
        except ClusterError as error:
            _log.warning("a rival was not told: object=%s error=%s", rival, error)
            return
        memory.rival = rival

    async def _make(self, about: Object, event: Event) -> None:
        """Make an event; one that is there already is left as it is."""
        try:
            await self.cluster.create(event_body(about, event, self.clock.now()))
        except NameTaken:
            # Its name follows from what it tells: an operator that died after it told it before.
            return
        except Forbidden as error:
            # In a namespace that goes away nobody reads them.
            if error.reason != "NamespaceTerminating":
                raise
        self.told(about["kind"], event.reason)


def pruned(now: datetime) -> Event:
    """Told once an hour, for as long as it is so."""
    text = (
        "the API server drops a part of the status, which an older definition does not know: apply "
        "the CustomResourceDefinitions of this release"
    )
    return Event("Warning", "StatusPruned", text, key=f"{now:%Y-%m-%dT%H}")


def event_body(about: Object, event: Event, now: datetime) -> Object:
    """The Kubernetes Event; its name follows from the object and the event's key."""
    meta = about["metadata"]
    mark = hashlib.sha256(f"{meta['uid']}/{event.reason}/{event.key}".encode()).hexdigest()[:16]
    at = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{meta['name']}.{mark}", "namespace": meta["namespace"]},
        "involvedObject": {
            "apiVersion": about["apiVersion"],
            "kind": about["kind"],
            "name": meta["name"],
            "namespace": meta["namespace"],
            "uid": meta["uid"],
            "resourceVersion": meta["resourceVersion"],
        },
        "type": event.kind,
        "reason": event.reason[:128],
        "message": _note(event.message),
        "source": {"component": _COMPONENT},
        "reportingComponent": _COMPONENT,
        "reportingInstance": "",
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }


def _note(message: str) -> str:
    """At most 1,024 bytes, since that is how the API server counts."""
    text = message.encode()
    if len(text) <= _LONGEST_NOTE:
        return message
    return text[: _LONGEST_NOTE - 3].decode(errors="ignore") + "…"
