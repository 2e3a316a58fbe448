"""An API server of a large fleet, in a process of its own: what it takes is not the operator's.

It answers JSON with JSON, as the real one does, but through pipes: what HTTP costs is not in the
figures. With each answer come the events of what has changed, as a watch shows them.
"""

import json
import marshal
import re
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import IO, Any

from moorage_testing.kube import ApiStore
from moorage_testing.kube.memory import Direct
from moorage_testing.kube.merging import matches

from benchmarks import objects
from moorage_operator.ports import ClusterError, Conflict, NameTaken, NotFound, Object, Page

EXECUTORS, SNAPSHOTS = 10, 20
_PAGE = 500

Ask = Callable[[bytes], bytes]
"""A request and its answer."""


class Client:
    """The operator's side: the `Cluster` port, and as `api` what others do there.

    Attributes:
        requests: of the operator, so far.
    """

    def __init__(self, ask: Ask, seconds: Callable[[], float]) -> None:
        self._ask, self._seconds = ask, seconds
        self.changed: Callable[[str, Object], None] = lambda *_: None
        self.requests = 0
        self.api = _Api(self)

    async def get(self, *where: Any) -> Object | None:
        """See `Cluster.get`."""
        found: Object | None = self._request("get", *where)
        return found

    async def list(self, *what: Any) -> Any:
        """See `Cluster.list`."""
        return self._request("list", *what)

    async def pages(self, *what: Any) -> AsyncGenerator[Page]:
        """See `Cluster.pages`."""
        after: int | None = 0
        while after is not None:
            first = after == 0
            items, after = self._request("page", *what, after)
            yield Page(items, first)

    async def apply(self, body: Object) -> Any:
        """See `Cluster.apply`."""
        return self._request("apply", body)

    async def create(self, body: Object) -> Any:
        """See `Cluster.create`."""
        return self._request("create", body)

    async def try_create(self, body: Object) -> None:
        """See `Cluster.try_create`."""
        self._request("try_create", body)

    async def replace_status(self, body: Object) -> Any:
        """See `Cluster.replace_status`."""
        return self._request("replace_status", body)

    async def patch(self, *what: Any) -> Any:
        """See `Cluster.patch`."""
        return self._request("patch", *what)

    async def delete(self, *where: Any, **how: Any) -> None:
        """See `Cluster.delete`."""
        self._request("delete", *where, **how)

    def _request(self, name: str, *given: Any, **named: Any) -> Any:
        self.requests += 1
        return self.call(name, *given, **named)

    def call(self, name: str, *given: Any, **named: Any) -> Any:
        """What the server answers; events come first."""
        asked = json.dumps([name, given, named, self._seconds()])
        found = json.loads(self._ask(asked.encode()))
        for event, body in found["events"]:
            self.changed(event, body)
        if found["refused"]:
            kind, message, reason = found["refused"]
            raise {one.__name__: one for one in (Conflict, NameTaken, NotFound)}.get(
                kind, ClusterError
            )(message, reason)
        return found["answer"]


class _Api:
    """What tests, users and kubelets do."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return lambda *given, **named: self._client.call(f"api.{name}", *given, **named)


class Server:
    """The other side."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._api = _ByJob(lambda: objects.START + timedelta(seconds=self.seconds))
        self._port, self._events = Direct(self._api), list[Any]()
        self._keys: dict[Any, list[Any]] = {}
        self._api.watchers.append(lambda event, body: self._events.append([event, body]))

    def answer(self, asked: bytes) -> bytes:
        """The answer to a request."""
        name, given, named, self.seconds = json.loads(asked)
        answer, refused = None, None
        try:
            if name == "page":
                answer = self._page(*given)
            elif name.startswith("api."):
                answer = getattr(self._api, name.removeprefix("api."))(*given, **named)
            else:
                answer = _at_once(getattr(self._port, name)(*given, **named))
        except ClusterError as error:
            refused = [type(error).__name__, str(error), error.reason]
        events, self._events[:] = [*self._events], []
        return json.dumps({"answer": answer, "refused": refused, "events": events}).encode()

    def _page(self, kind: str, _namespace: str | None, selector: str, after: int) -> Any:
        """Pods by their role; of all else everything is wanted."""
        role = selector.partition("role=")[2].partition(",")[0]
        if after == 0:
            self._keys[kind, role] = self._api.keys(kind, role)
        keys = self._keys[kind, role]
        items = [self._api.need(*one) for one in keys[after : after + _PAGE]]
        ends = after + _PAGE >= len(keys)
        return items, None if ends else after + _PAGE


def _at_once(work: Any) -> Any:
    """What a coroutine returns that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("the API server in memory waits for something")


class _Packed(MutableMapping[Any, Any]):
    """Objects as bytes: a third of a million of them as objects of Python take gigabytes."""

    def __init__(self) -> None:
        self.bytes: dict[Any, bytes] = {}

    def __getitem__(self, key: Any) -> Any:
        return marshal.loads(self.bytes[key])  # noqa: S302  our own

    def __setitem__(self, key: Any, found: Any) -> None:
        self.bytes[key] = marshal.dumps(found)

    def __delitem__(self, key: Any) -> None:
        del self.bytes[key]

    def __contains__(self, key: object) -> bool:
        return key in self.bytes

    def __iter__(self) -> Iterator[Any]:
        return iter(self.bytes)

    def __len__(self) -> int:
        return len(self.bytes)


_INDEXED = ("moorage.dev/job", "moorage.dev/job-uid")


class _ByJob(ApiStore):
    """Lists of one job's objects without a look at all others, as a server's index gives them.

    Attributes:
        told: how often what was told by an Event; the Events themselves are not kept, as a real
            server lets them go after an hour.
    """

    def __init__(self, now: Any) -> None:
        super().__init__(now=now)
        self._objects: Any = _Packed()
        self._labelled: dict[Any, dict[Any, None]] = {}
        self.told: Counter[str] = Counter()

    def create(self, body: Any) -> Any:
        """See `ApiStore`."""
        if body["kind"] == "Event":
            self.told[f"{body['type']} {body['reason']}"] += 1
            return body
        return super().create(body)

    def all_told(self) -> Any:
        """What was told so far."""
        return self.told

    def clone(self, first: str, address: str, clones: list[list[str]]) -> None:
        """Other jobs like one that is there: names, uids and addresses differ."""
        found = {key: self._objects[key] for key in self._objects if first in key[2]}
        texts = {key: json.dumps(one) for key, one in found.items()}
        uids = re.compile("|".join({one["metadata"]["uid"] for one in found.values()}))
        for name, own in clones:
            for key, text in texts.items():
                self.version += 1
                named = uids.sub(partial(_of_clone, name), text)
                made = json.loads(named.replace(first, name).replace(f'"{address}"', f'"{own}"'))
                made["metadata"]["resourceVersion"] = str(self.version)
                where = (key[0], key[1], key[2].replace(first, name))
                self._objects[where] = made
                self._index(where, made)

    def keys(self, kind: str, role: str = "") -> list[Any]:
        """Of all objects of a kind; of pods those of a role, told by their names."""
        mark = {"driver": "-driver", "executor": "-exec-"}.get(role, "")
        return [key for key in self._objects if key[0] == kind and mark in key[2]]

    def list(self, kind: str, namespace: str | None = None, labels: Any = None) -> Any:
        """See `ApiStore`."""
        by = next((label for label in _INDEXED if label in (labels or {})), None)
        if by is None:
            return [self._objects[key] for key in self.keys(kind)]
        keys = sorted(self._labelled.get((kind, by, labels[by]), ()))
        found = (self._objects[key] for key in keys if namespace in {None, key[1]})
        return [one for one in found if matches(one["metadata"].get("labels"), labels)]

    def _index(self, key: Any, found: Any, *, there: bool = True) -> None:
        labels = found["metadata"].get("labels") or {}
        for label in _INDEXED:
            if label in labels:
                keys = self._labelled.setdefault((key[0], label, labels[label]), {})
                if there:
                    keys[key] = None
                else:
                    keys.pop(key, None)

    def _store(self, key: Any, new: Any, event: str) -> Any:
        self._index(key, new)
        return super()._store(key, new, event)

    def _remove(self, key: Any, last: Any) -> Any:
        self._index(key, last, there=False)
        return super()._remove(key, last)


def uid_of(name: str, uid: str) -> str:
    """Of the object of a clone that is like the one of this uid."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{name}/{uid}"))


def _of_clone(name: str, uid: re.Match[str]) -> str:
    return uid_of(name, uid[0])


@contextmanager
def apart() -> Iterator[Ask]:
    """A server in a process of its own, while inside."""
    command = [sys.executable, "-m", "benchmarks.scale.apiserver"]
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        out, back = process.stdin, process.stdout

        def ask(asked: bytes) -> bytes:
            _send(out, asked)
            return _receive(back)

        try:
            yield ask
        finally:
            out.close()


def _send(pipe: IO[bytes], data: bytes) -> None:
    pipe.write(len(data).to_bytes(8, "big") + data)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> bytes:
    size = int.from_bytes(pipe.read(8), "big")
    return pipe.read(size) if size else b""


def main() -> None:
    """Answer until there is nobody to ask."""
    server = Server()
    while asked := _receive(sys.stdin.buffer):
        _send(sys.stdout.buffer, server.answer(asked))


if __name__ == "__main__":
    main()
