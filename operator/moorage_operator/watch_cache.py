"""What lists and watches have shown of jobs, snapshots and pods: passes that do nothing read here.

It may be behind in any way: an event may be late, doubled, out of order or lost. So it is no truth:
what is decided on it is only that there is nothing to do, or a status under the resourceVersion
that it rests on. Before anything else is done, everything is read live.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

import msgspec

from moorage_api import API_VERSION
from moorage_api.reserved import LOCAL_VOLUME, TLS_VOLUME
from moorage_operator.children.names import (
    JOB_LABEL,
    REVISION_ANNOTATION,
    STANDBY_ANNOTATION,
    STORE_TASK_ANNOTATION,
)
from moorage_operator.objects import job_name_of
from moorage_operator.ports import Kind, Object, Page, Reads

WATCHED: tuple[Kind, ...] = ("StatefulSparkJob", "StatefulSparkSnapshot", "Pod")

_Place = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class _Kept:
    version: int
    job: str  # by its label
    data: bytes  # JSON of what is used of it: a tenth of what objects of Python take
    since: int  # the cache's own count of what it was shown


@dataclass(slots=True)
class WatchCache:
    """The newest known version of each object, by name and by job."""

    _kept: dict[_Place, _Kept] = field(default_factory=dict)
    _of_job: dict[_Place, dict[str, None]] = field(default_factory=dict)
    _marks: dict[tuple[str, str], int] = field(default_factory=dict)
    """By job: the count at the last change of the job or of anything with its label."""
    _count: int = 0
    _gone: dict[tuple[Kind, str | None], dict[_Place, int]] = field(default_factory=dict)
    """By list that is being taken in: what was deleted meanwhile, and in which version."""

    def seen(self, event: str, kind: Kind, body: Object) -> bool:
        """An object was shown (`DELETED`: for the last time); older than what is known: ignored.

        Returns whether it was news.
        """
        meta = body["metadata"]
        place = (kind, meta.get("namespace", ""), meta["name"])
        known, version = self._kept.get(place), _version(meta)
        if known is not None and version < known.version:
            return False
        if known is not None and version == known.version > 0 and event != "DELETED":
            # A list shows again what is known: most objects, each time.
            return False
        self._count += 1
        self.drop(place)
        if event == "DELETED":
            for namespace in {None, place[1]}:
                if (gone := self._gone.get((kind, namespace))) is not None:
                    gone[place] = version
            return True
        job = (meta.get("labels") or {}).get(JOB_LABEL, "")
        named = {"apiVersion": "v1" if kind == "Pod" else API_VERSION, "kind": kind}
        data = msgspec.json.encode({**used_of(kind, body), **named})
        self._kept[place] = _Kept(version, job, data, self._count)
        self._mark(place, job)
        if job:
            self._of_job.setdefault((kind, place[1], job), {})[place[2]] = None
        return True

    def listing(self, kind: Kind, namespace: str | None, *, fresh: bool = True) -> "Listing":
        """Begin to take in a list; to be called before it is asked for.

        Args:
            fresh: nothing of what it shows need have been shown before.
        """
        gone = self._gone[kind, namespace] = {}
        return Listing(self, kind, namespace, self._count, None if fresh else {}, gone)

    def ended(self, kind: Kind, namespace: str | None) -> None:
        """A list was taken in: it brings back nothing any more."""
        self._gone.pop((kind, namespace), None)

    def knows(self, place: _Place) -> bool:
        """Whether an object is there, as far as was shown."""
        return place in self._kept

    def versions(self, kind: Kind, namespace: str | None) -> Iterator[tuple[_Place, int]]:
        """Of all objects of a kind that are known; 0 of what has none that can be compared."""
        for place, kept in self._kept.items():
            if place[0] == kind and namespace in {None, place[1]}:
                yield place, kept.version

    def knows_job_of(self, snapshot: Object) -> bool:
        """Whether the job that a snapshot names is there, and finds it by its label."""
        meta, job = snapshot["metadata"], job_name_of(snapshot.get("spec") or {})
        labelled = (meta.get("labels") or {}).get(JOB_LABEL) == job
        return labelled and ("StatefulSparkJob", meta["namespace"], job) in self._kept

    def is_as_before(self, place: _Place, mark: int) -> bool:
        """Whether nothing was shown of a known object since the count was this."""
        kept = self._kept.get(place)
        return kept is not None and kept.since <= mark

    def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """What is used of an object; None if nothing is known of it."""
        kept = self._kept.get((kind, namespace, name))
        return msgspec.json.decode(kept.data) if kept is not None else None

    def of_job(self, kind: Kind, namespace: str, job: str) -> list[Object]:
        """What is used of all objects with the job's label."""
        found = self._of_job.get((kind, namespace, job), ())
        return [
            msgspec.json.decode(self._kept[kind, namespace, name].data) for name in sorted(found)
        ]

    def mark_of(self, namespace: str, job: str) -> int:
        """The same as before: nothing of the job has changed since, as far as was shown."""
        return self._marks.get((namespace, job), 0)

    def drop(self, place: _Place) -> None:
        """Forget an object."""
        kept = self._kept.pop(place, None)
        if kept is None:
            return
        self._count += 1
        self._mark(place, kept.job)
        if place[0] == "StatefulSparkJob":
            del self._marks[place[1], place[2]]
        if not kept.job:
            return
        key = (place[0], place[1], kept.job)
        self._of_job[key].pop(place[2], None)
        if not self._of_job[key]:
            del self._of_job[key]

    def let_go(self, namespace: str) -> None:
        """Forget a namespace."""
        for kind in WATCHED:
            for place, _ in list(self.versions(kind, namespace)):
                self.drop(place)
            self.ended(kind, namespace)

    def _mark(self, place: _Place, job: str) -> None:
        """The object is another one: so is what is known of the job, where there is one."""
        kind, namespace, name = place
        if kind == "StatefulSparkJob":
            self._marks[namespace, name] = self._count
        if (namespace, job) in self._marks:
            self._marks[namespace, job] = self._count


@dataclass(slots=True)
class Listing:
    """A list of one kind that is taken in page by page, so that it is never whole in memory.

    It may be put together of what several selectors find. Of one that began anew half way, what
    the first half alone showed goes with the next list.
    """

    cache: WatchCache
    kind: Kind
    namespace: str | None
    mark: int  # what was shown since may be newer than the list
    # What it shows that was not known, and the version; None where nothing need have been
    news: dict[_Place, int] | None
    gone: dict[_Place, int]  # what a watch showed for the last time since it began
    _unchanged: dict[str, set[_Place]] = field(default_factory=dict)
    """By selector, what was known before; the rest of what is there needs no remembering."""

    def take(self, page: Page, selector: str = "") -> None:
        """Take in a page of what a selector finds."""
        if page.first:
            self._unchanged[selector] = set()
        for body in page.items:
            meta = body["metadata"]
            place = (self.kind, meta.get("namespace", ""), meta["name"])
            version = _version(meta)
            if self.gone.get(place, -1) >= version:
                continue
            if self.cache.seen("", self.kind, body):
                if self.news is not None and version:
                    self.news[place] = version
            elif self.cache.is_as_before(place, self.mark):
                self._unchanged[selector].add(place)

    def end(self) -> list[tuple[str, str]]:
        """Drop what is there no more; namespace and name of each."""
        there = set[_Place]().union(*self._unchanged.values())
        gone = [
            place
            for place, _ in self.cache.versions(self.kind, self.namespace)
            if place not in there and self.cache.is_as_before(place, self.mark)
        ]
        for place in gone:
            self.cache.drop(place)
        self.cache.ended(self.kind, self.namespace)
        return [(place[1], place[2]) for place in gone]


class CachedReads:
    """Reads of what is watched from the cache; of all else, live."""

    def __init__(self, cache: WatchCache, live: Reads) -> None:
        self._cache, self._live = cache, live

    async def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """See `Reads.get`; None may also mean that no watch has shown it yet."""
        if kind in WATCHED:
            return self._cache.get(kind, namespace, name)
        return await self._live.get(kind, namespace, name)

    async def list(
        self, kind: Kind, namespace: str | None, labels: Mapping[str, str] | None = None
    ) -> list[Object]:
        """See `Reads.list`."""
        if kind in WATCHED and namespace is not None and labels and [*labels] == [JOB_LABEL]:
            return self._cache.of_job(kind, namespace, labels[JOB_LABEL])
        return await self._live.list(kind, namespace, labels)


def is_older(meta: Mapping[str, Any], version: str) -> bool:
    """Whether an object is older than this version of it."""
    return _version(meta) < _version({"resourceVersion": version})


def _version(meta: Mapping[str, Any]) -> int:
    """Versions can be compared as numbers; of what is none, the last one shown is the newest."""
    text = meta["resourceVersion"]
    return int(text) if text.isdecimal() else 0


# -- what is used of objects -----------------------------------------------------------------------
#
# Of a pod as large as real ones a tenth, of our own objects all but who manages which field: the
# rest is passed over while it is decoded.

_UNUSED_ANNOTATION = "kubectl.kubernetes.io/last-applied-configuration"
_VOLUMES = (TLS_VOLUME, LOCAL_VOLUME)
_NOTES = (REVISION_ANNOTATION, STANDBY_ANNOTATION, STORE_TASK_ANNOTATION)


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
    persistentVolumeClaim: Any


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
        meta["annotations"] = {key: notes[key] for key in notes if key in _NOTES}
        volumes = used.get("spec", {}).get("volumes")
        if volumes:
            used["spec"]["volumes"] = [one for one in volumes if one.get("name") in _VOLUMES]
    elif _UNUSED_ANNOTATION in notes:
        meta["annotations"] = {key: notes[key] for key in notes if key != _UNUSED_ANNOTATION}
    return used
