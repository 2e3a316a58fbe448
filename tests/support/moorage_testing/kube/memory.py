"""The `Cluster` port of one operator under test: a journal, and faults and deaths on request.

The server behind it is the one in memory, or any other that has the port.
"""

import asyncio
from contextlib import contextmanager

from moorage_operator.kube.rest import cluster_error
from moorage_operator.ports import ClusterError, Page
from moorage_testing.kube.api import ApiStore
from moorage_testing.kube.faults import Call, CrashPoints, Fault
from moorage_testing.kube.merging import copied, matches, parse_selector
from moorage_testing.kube.refusals import ApiRefusal

__all__ = ["Direct", "MemoryCluster"]


class Direct:
    """The port on an `ApiStore`; what it refuses is told as by the real client."""

    def __init__(self, api):
        self._api = api

    async def get(self, kind, namespace, name):
        return _answered(lambda: self._api.get(kind, namespace, name))

    async def list(self, kind, namespace, labels=None):
        return _answered(lambda: self._api.list(kind, namespace, labels))

    async def pages(self, kind, namespace, selector):
        found = await self.list(kind, namespace)
        wanted = parse_selector(selector)
        yield Page([one for one in found if wanted(one["metadata"].get("labels"))], first=True)

    async def apply(self, body):
        return _answered(lambda: self._api.apply(body))

    async def create(self, body):
        return _answered(lambda: self._api.create(body))

    async def try_create(self, body):
        _answered(lambda: self._api.try_create(body))

    async def replace_status(self, body):
        return _answered(lambda: self._api.replace_status(body))

    async def patch(self, kind, namespace, name, patch):
        return _answered(lambda: self._api.patch(kind, namespace, name, patch))

    async def delete(
        self, kind, namespace, name, *, uid=None, grace_seconds=None, foreground=False
    ):
        propagation = "Foreground" if foreground else "Background"

        def delete():
            if self._api.get(kind, namespace, name) is not None:
                self._api.delete(
                    kind, namespace, name, uid=uid, grace=grace_seconds, propagation=propagation
                )

        _answered(delete)


class MemoryCluster:
    """One operator's client of one server, by default an `ApiStore` of its own.

    Everything that tests do on behalf of others goes to `api` and is neither counted nor disturbed.
    Two of these on one store are two operators.

    Attributes:
        api: the server itself, for tests.
        points: the death of this operator; share it with the stand-ins for drivers and stores.
        journal: every call, in order.
        chaos: called with each `Call`; a `Fault` that it returns strikes the call.
    """

    def __init__(self, api=None, *, points=None, port=None):
        self.api = api or ApiStore()
        self._port = port or Direct(self.api)
        self.points = points or CrashPoints()
        self.journal = []
        self.chaos = None
        self._faults = []
        self._frozen = {}

    # -- for tests

    def fail(self, error, **where):
        """Let calls meet an error: verb, kind, name, when, times, skip as in `Fault`."""
        self._faults.append(Fault(error, **where))

    def heal(self):
        """Forget all faults and frozen views."""
        self._faults, self._frozen, self.chaos = [], {}, None

    @contextmanager
    def frozen(self, *kinds):
        """Within it, lists of these kinds show what was there at its beginning."""
        self._frozen |= {kind: self.api.list(kind) for kind in kinds}
        try:
            yield
        finally:
            for kind in kinds:
                self._frozen.pop(kind, None)

    @property
    def effects(self):
        """The journal's calls that may have changed something."""
        return [call for call in self.journal if call.effect]

    def watch(self, callback):
        """Call back with (ADDED|MODIFIED|DELETED, object) after every change."""
        self.api.watchers.append(callback)

    # -- the port

    async def get(self, kind, namespace, name):
        return await self._read(
            "get", kind, namespace, name, lambda: self._port.get(kind, namespace, name)
        )

    async def list(self, kind, namespace, labels=None):
        return await self._read(
            "list", kind, namespace, "", lambda: self._list(kind, namespace, labels)
        )

    async def pages(self, kind, namespace, selector):
        found = self._port.pages(kind, namespace, selector)
        yield await self._read("list", kind, namespace, "", lambda: anext(found))
        async for page in found:
            yield page

    async def apply(self, body):
        return await self._write("apply", body, lambda: self._port.apply(body))

    async def create(self, body):
        return await self._write("create", body, lambda: self._port.create(body))

    async def try_create(self, body):
        meta = body["metadata"]
        await self._read(
            "try_create",
            body["kind"],
            meta.get("namespace"),
            meta["name"],
            lambda: self._port.try_create(body),
        )

    async def replace_status(self, body):
        return await self._write("replace_status", body, lambda: self._port.replace_status(body))

    async def patch(self, kind, namespace, name, patch):
        body = {**patch, "kind": kind}
        body["metadata"] = {**patch.get("metadata", {}), "namespace": namespace, "name": name}
        return await self._write(
            "patch", body, lambda: self._port.patch(kind, namespace, name, patch)
        )

    async def delete(
        self, kind, namespace, name, *, uid=None, grace_seconds=None, foreground=False
    ):
        body = {"kind": kind, "metadata": {"namespace": namespace, "name": name}}
        await self._write(
            "delete",
            body,
            lambda: self._port.delete(
                kind,
                namespace,
                name,
                uid=uid,
                grace_seconds=grace_seconds,
                foreground=foreground,
            ),
        )

    # -- how calls go

    async def _list(self, kind, namespace, labels):
        if kind not in self._frozen:
            return await self._port.list(kind, namespace, labels)
        return [
            copied(found)
            for found in self._frozen[kind]
            if namespace in {None, found["metadata"].get("namespace")}
            and matches(found["metadata"].get("labels"), labels)
        ]

    async def _read(self, verb, kind, namespace, name, read):
        await asyncio.sleep(0)
        self.points.check()
        fault = self._note(Call(len(self.journal) + 1, verb, kind, namespace or "", name, False))
        if fault is not None:
            raise fault.error
        return await read()

    async def _write(self, verb, body, write):
        await asyncio.sleep(0)
        meta = body["metadata"]
        where = (body["kind"], meta.get("namespace") or "", meta.get("name") or "")
        call = Call(len(self.journal) + 1, verb, *where, True, body)
        self.points.check()
        fault = self._note(call)
        with self.points.effect(str(call)):
            if fault is not None and fault.when == "before":
                raise fault.error
            answer = await write()
        if fault is not None:
            raise fault.error
        return answer

    def _note(self, call):
        self.journal.append(call)
        found = next((fault for fault in self._faults if fault.meets(call)), None)
        return found or (self.chaos(call) if self.chaos else None)


def _answered(act):
    try:
        return act()
    except ApiRefusal as refusal:
        error: ClusterError = cluster_error(refusal.code, refusal.status)
        raise error from refusal
