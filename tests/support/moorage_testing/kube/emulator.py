"""The API server over HTTP: kmock's discovery and faults, with the objects of an `ApiStore`.

Whatever a test lets kmock answer (`kmock["patch ..."] << 503`) comes first; all other requests for
known resources are carried out on the store. kmock's `_handle`, `_raw_request`, parser and error
classes are its inner parts: they are used in this file only, and the release is pinned.
"""

import asyncio
import json
from typing import Any

import aiohttp.web
import attrs
import kmock
from kmock._internal import k8s, parsing

from moorage_operator.kube.rest import MANAGER, RESOURCES
from moorage_testing.kube.api import ApiStore
from moorage_testing.kube.merging import parse_selector
from moorage_testing.kube.refusals import ApiRefusal

__all__ = ["Emulator"]

_BY_PATH = {(r.root, r.plural): kind for kind, r in RESOURCES.items()}
_MOST_EVENTS = 10_000
_VERBS = ["get", "list", "watch", "create", "update", "patch", "delete"]


_parsed = parsing.parse_path


def _parsed_whole(path):
    """kmock takes the list of namespaces for what lies in one without a name, and breaks."""
    if path.strip("/") == "api/v1/namespaces":
        return parsing.ParsedPath("", "v1", "namespaces")
    return _parsed(path)


parsing.parse_path = _parsed_whole


@attrs.define(kw_only=True)
class Emulator(kmock.KubernetesScaffold):
    """An API server in the test's own loop."""

    api: ApiStore = attrs.field(factory=ApiStore)
    raw: list = attrs.field(factory=list, init=False)
    """Every request as (method, path, query, bytes)."""

    _log: list = attrs.field(factory=list, init=False)
    _labels: dict = attrs.field(factory=dict, init=False)
    _news: asyncio.Event = attrs.field(factory=asyncio.Event, init=False)
    page: int = 500
    """Items a page at most, whatever is asked for."""

    def __attrs_post_init__(self):
        super().__attrs_post_init__()
        self.api.watchers.append(self._note)
        for resource in RESOURCES.values():
            name = f"{resource.group}/{resource.version}/{resource.plural}".lstrip("/")
            known: Any = {
                "kind": resource.kind,
                "namespaced": resource.namespaced,
                "verbs": _VERBS,
                "subresources": ["status"] if resource.status else [],
            }
            self.resources[name] = known

    async def _handle(self, request):
        try:
            return await super()._handle(request)
        except k8s.KubernetesNotFoundError:
            place = _place(request.url.path)
            if place is None:
                raise
        raw = request._raw_request
        body = await raw.read()
        self.raw.append((raw.method, request.url.path, dict(raw.query), body))
        try:
            return await self._serve(raw, place, raw.query, json.loads(body) if body else {})
        except ApiRefusal as refusal:
            return aiohttp.web.json_response(refusal.status, status=refusal.code)

    async def _serve(self, raw, place, query, body):
        kind, namespace, name, subresource = place
        if raw.method == "GET" and query.get("watch") == "true":
            return await self._watch(raw, kind, namespace, query)
        if raw.method == "GET" and not name:
            return aiohttp.web.json_response(self._list(kind, namespace, query))
        code = 201 if raw.method == "POST" else 200
        done = self._do(raw, (kind, namespace, name), subresource, body)
        return aiohttp.web.json_response(done, status=code)

    def _do(self, raw, place, subresource, body):
        kind, namespace, name = place
        if raw.method == "GET":
            return self.api.need(kind, namespace, name)
        if raw.method == "POST":
            body.setdefault("metadata", {}).setdefault("namespace", namespace)
            dry = raw.query.get("dryRun") == "All"
            return self.api.try_create(body) if dry else self.api.create(body)
        if raw.method == "PUT":
            put = self.api.replace_status if subresource == "status" else self.api.replace
            return put(body)
        if raw.method == "PATCH" and raw.content_type == "application/apply-patch+yaml":
            manager = raw.query.get("fieldManager", MANAGER)
            return self.api.apply(body, manager, subresource)
        if raw.method == "PATCH":
            return self.api.patch(kind, namespace, name, body, subresource)
        asked = body.get("preconditions", {})
        return self.api.delete(
            kind,
            namespace,
            name,
            uid=asked.get("uid"),
            version=asked.get("resourceVersion"),
            grace=body.get("gracePeriodSeconds"),
            propagation=body.get("propagationPolicy", "Background"),
        )

    def _list(self, kind, namespace, query):
        wanted = parse_selector(query.get("labelSelector", ""))
        found = [o for o in self.api.list(kind, namespace) if wanted(o["metadata"].get("labels"))]
        start = int(query.get("continue") or 0)
        size = min(self.page, int(query.get("limit") or self.page))
        meta = {"resourceVersion": str(self.api.version)}
        if len(found) > start + size:
            meta["continue"] = str(start + size)
        items = [
            {key: value for key, value in item.items() if key not in {"kind", "apiVersion"}}
            for item in found[start : start + size]
        ]
        resource = RESOURCES[kind]
        return {
            "apiVersion": resource.api_version,
            "kind": f"{kind}List",
            "metadata": meta,
            "items": items,
        }

    async def _watch(self, raw, kind, namespace, query):
        """Events since a version, until the client goes or the time is over."""
        response = aiohttp.web.StreamResponse()
        await response.prepare(raw)
        wanted = parse_selector(query.get("labelSelector", ""))
        since = int(query.get("resourceVersion") or self.api.version)
        if self._log and since < self._log[0][0] - 1:
            await response.write(_line("ERROR", _expired()))
            return response
        loop = asyncio.get_running_loop()
        end = loop.time() + float(query.get("timeoutSeconds") or 3600)
        while not _closing(raw) and loop.time() < end:
            for version, event, found, was in [entry for entry in self._log if entry[0] > since]:
                since, meta = version, found["metadata"]
                mine = found["kind"] == kind and namespace in {None, meta.get("namespace")}
                shown = _shown(event, wanted(was), wanted(meta.get("labels")))
                if mine and shown:
                    await response.write(_line(shown, found))
            news = self._news
            try:
                async with asyncio.timeout(min(0.5, max(end - loop.time(), 0.01))):
                    await news.wait()
            except TimeoutError:
                continue
        return response

    def _note(self, event, found):
        meta = found["metadata"]
        place = (found["kind"], meta.get("namespace"), meta["name"])
        labels = meta.get("labels")
        was = self._labels.get(place, labels)
        self._labels[place] = labels
        self._log.append((int(meta["resourceVersion"]), event, found, was))
        del self._log[:-_MOST_EVENTS]
        self._news.set()
        self._news = asyncio.Event()


def _shown(event, was, now):
    """What a watch with a selector shows of an event; None if nothing."""
    if event == "MODIFIED" and was != now:
        return "ADDED" if now else "DELETED"
    return event if now else None


def _closing(raw):
    return raw.transport is None or raw.transport.is_closing()


def _line(event, found):
    return json.dumps({"type": event, "object": found}).encode() + b"\n"


def _expired():
    refusal = ApiRefusal(410, "Expired", "too old resource version")
    return refusal.status


def _place(path):
    """(kind, namespace, name, subresource) that a path means; None for no known resource."""
    parts = path.strip("/").split("/")
    root = "/" + "/".join(parts[: 2 if parts[0] == "api" else 3])
    rest = parts[2 if parts[0] == "api" else 3 :]
    namespace = None
    if len(rest) >= 3 and rest[0] == "namespaces":
        namespace, rest = rest[1], rest[2:]
    kind = _BY_PATH.get((root, rest[0])) if rest else None
    if kind is None:
        return None
    name, subresource = ([*rest[1:], "", ""])[:2]
    return kind, namespace, name, subresource
