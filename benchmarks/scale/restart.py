"""An operator's restart as a user sees it: the whole process, HTTP and Kopf included.

Each job runs, with eleven pods and twenty completed snapshots, all as large as real ones. This
process is the API server and the jobs' drivers; the operator is another one, as its image starts
it. It is started twice: what is measured is the second start, until it says that all was looked at
and each driver was asked.
Drivers are reached on addresses of this machine, which Linux has without being asked, at the
port that drivers have: nothing else may listen there.
"""

import asyncio
import json
import os
import re
import sys
import tempfile
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from aiohttp import web
from moorage_testing.kube.merging import merge_patch

from benchmarks import objects
from benchmarks.scale.apiserver import Server
from benchmarks.scale.curve import Curve
from benchmarks.scale.operator import Fleet
from moorage_api.driver import ENDPOINT_PORT, STATE_PATH
from moorage_operator.kube.rest import RESOURCES
from moorage_operator.ports import Kind

__all__ = ["measure"]

_ROOT = Path(__file__).parents[2]
_LEASE = "moorage-system/moorage-operator"
_SETTLED = 420.0
_PATIENCE = 1800.0
_BOOKMARKS = 30.0
_DONE = b"all was looked at"
_BY_PATH = {(one.root, one.plural): kind for kind, one in RESOURCES.items()}
# What Kopf must find: what it watches, and what it waits for although it watches none of them.
_SERVED: tuple[Kind, ...] = ("StatefulSparkJob", "StatefulSparkSnapshot", "Pod", "Namespace")


async def settled() -> tuple[list[Any], Any]:
    """The objects of one job that has come to rest about now, and what its driver says."""
    objects.START = datetime.now(UTC) - timedelta(seconds=_SETTLED)
    server = Server()
    fleet = Fleet(jobs=1, ask=server.answer)
    loop = asyncio.get_running_loop()
    usual = loop.time
    loop.time = lambda: fleet.seconds  # type: ignore[method-assign]  # injected
    try:
        await fleet.begin()
        await fleet.run(_SETTLED, fleet.progress)
    finally:
        loop.time = usual  # type: ignore[method-assign]  # as it was
    store = server._api._objects  # noqa: SLF001
    found = [one for one in map(store.__getitem__, store) if one["metadata"].get("namespace")]
    for body in found:
        if body["kind"] == "StatefulSparkJob":
            body["status"]["operator"] = {"lease": _LEASE}
        _enlarge(body)
    report = fleet.drivers.jobs[objects.address_of(0)]
    return found, report.model_dump(mode="json", by_alias=True, exclude_none=True)


def _enlarge(body: Any) -> None:
    """What a real API server keeps with an object and no operator looks at."""
    fields: dict[str, Any] = {
        f"f:field-{number}": {"f:inner": {}, "f:other": {}} for number in range(40)
    }
    entry = {"manager": "kubelet", "operation": "Update", "fieldsType": "FieldsV1"}
    body["metadata"]["managedFields"] = [{**entry, "fieldsV1": {"f:metadata": fields}}]
    if body["kind"] == "Pod":
        main = body["spec"]["containers"][0]
        main["env"] = [{"name": f"VARIABLE_{n}", "value": f"value-{n}" * 3} for n in range(25)]
        main["volumeMounts"] = [{"name": f"v{n}", "mountPath": f"/mnt/{n}"} for n in range(8)]
        body["spec"]["volumes"] = [{"name": f"v{n}", "emptyDir": {}} for n in range(8)]
        body["metadata"]["managedFields"].append({**entry, "fieldsV1": {"f:status": fields}})


class Cluster:
    """API server and drivers of so many jobs like the one.

    Attributes:
        asked: requests by method and kind.
        heard: set once each driver was asked since it was cleared by `begin`.
    """

    def __init__(self, jobs: int, found: list[Any], report: Any) -> None:
        self.asked: Counter[str] = Counter()
        self.heard = asyncio.Event()
        self._silent: set[str] = set()
        self._version = 1
        self._kept: dict[str, dict[tuple[str, str], bytes]] = defaultdict(dict)
        self._reports: dict[str, bytes] = {}
        self._lists: dict[str, list[tuple[str, str]]] = {}
        self._watches: dict[str, set[asyncio.Queue[bytes]]] = defaultdict(set)
        first, address = objects.name_of(0), objects.address_of(0)
        texts = [(one["kind"], one["metadata"], json.dumps(one)) for one in found]
        said = json.dumps(report)
        uids = re.compile("|".join(meta["uid"] for _, meta, _ in texts))
        for number in range(jobs):
            name = objects.name_of(number)
            ip = f"127.{1 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"

            def own(text: str, name: str = name, ip: str = ip) -> bytes:
                text = text.replace(first, name).replace(f'"{address}"', f'"{ip}"')
                return uids.sub(
                    lambda uid: str(uuid.uuid5(uuid.NAMESPACE_OID, name + uid[0])), text
                ).encode()

            for kind, meta, text in texts:
                self._version += 1
                versioned = text.replace(
                    f'"resourceVersion": "{meta["resourceVersion"]}"',
                    f'"resourceVersion": "{self._version}"',
                )
                self._kept[kind][meta["namespace"], meta["name"].replace(first, name)] = own(
                    versioned
                )
            self._reports[ip] = own(said)

    def begin(self) -> None:
        """Count anew."""
        self.asked.clear()
        self.heard.clear()
        self._silent = {*self._reports}

    @asynccontextmanager
    async def served(self) -> AsyncIterator[str]:
        """Its address, while inside."""
        app = web.Application(client_max_size=2**24)
        app.router.add_get("/version", _discovered({"major": "1", "minor": "34"}))
        app.router.add_get("/api", _discovered({"versions": ["v1"]}))
        version = {"groupVersion": "moorage.dev/v1alpha1", "version": "v1alpha1"}
        group = {"name": "moorage.dev", "versions": [version], "preferredVersion": version}
        app.router.add_get("/apis", _discovered({"groups": [group]}))
        for root in ("/api/v1", "/apis/moorage.dev/v1alpha1"):
            app.router.add_get(root, _discovered({"resources": _resources(root)}))
        app.router.add_get(STATE_PATH, self._driver)
        app.router.add_route("*", "/{path:.*}", self._api)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            await web.TCPSite(runner, "0.0.0.0", ENDPOINT_PORT, backlog=1024).start()  # noqa: S104
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()

    async def _driver(self, request: web.Request) -> web.Response:
        ip = request.host.partition(":")[0]
        self._silent.discard(ip)
        if not self._silent:
            self.heard.set()
        return _json(self._reports[ip])

    async def _api(self, request: web.Request) -> web.StreamResponse:
        kind, namespace, name = _place(request.path)
        verb = "WATCH" if "watch" in request.query else request.method
        self.asked[f"{verb} {kind}"] += 1
        if verb == "WATCH":
            return await self._watch(request, kind)
        if verb == "GET" and not name:
            return self._list(request, kind)
        kept, key = self._kept[kind], (namespace, name)
        if verb == "GET":
            return _json(kept[key]) if key in kept else _missing()
        body = await request.json()
        if verb == "PATCH":
            if key not in kept:
                return _missing()
            body = merge_patch(json.loads(kept[key]), body)
        self._version += 1
        body["metadata"]["resourceVersion"] = str(self._version)
        body["metadata"].setdefault("uid", str(uuid.uuid4()))
        kept[namespace, body["metadata"]["name"]] = data = json.dumps(body).encode()
        for queue in self._watches[kind]:
            queue.put_nowait(b'{"type":"MODIFIED","object":' + data + b"}\n")
        return _json(data)

    def _list(self, request: web.Request, kind: str) -> web.Response:
        """Pods by their role; of all else everything is wanted, or nothing."""
        selector = request.query.get("labelSelector", "")
        role = selector.partition("role=")[2].partition(",")[0]
        mark = {"driver": "-driver", "executor": "-exec-"}.get(role, "")
        start = int(request.query.get("continue") or 0)
        if not start:
            names = [] if "!" in selector else [one for one in self._kept[kind] if mark in one[1]]
            self._lists[kind + role] = names
        names = self._lists[kind + role]
        end = start + int(request.query["limit"])
        after = str(end) if end < len(names) else ""
        meta = json.dumps({"resourceVersion": str(self._version), "continue": after}).encode()
        items = b",".join(self._kept[kind][one] for one in names[start:end])
        head = json.dumps({"apiVersion": "v1", "kind": f"{kind}List"}).encode()[:-1]
        return _json(head + b',"metadata":' + meta + b',"items":[' + items + b"]}")

    async def _watch(self, request: web.Request, kind: str) -> web.StreamResponse:
        response, queue = web.StreamResponse(), asyncio.Queue[bytes]()
        await response.prepare(request)
        self._watches[kind].add(queue)
        try:
            while True:
                try:
                    async with asyncio.timeout(_BOOKMARKS):
                        line = await queue.get()
                except TimeoutError:
                    meta = {"resourceVersion": str(self._version)}
                    mark = {"type": "BOOKMARK", "object": {"kind": kind, "metadata": meta}}
                    line = json.dumps(mark).encode() + b"\n"
                await response.write(line)
        except ConnectionResetError:
            return response
        finally:
            self._watches[kind].discard(queue)


def _discovered(answer: Any) -> Any:
    async def handler(_: web.Request) -> web.Response:
        return web.json_response(answer)

    return handler


def _resources(root: str) -> list[Any]:
    verbs = ["get", "list", "watch", "patch", "create", "delete"]
    return [
        {
            "kind": kind,
            "name": RESOURCES[kind].plural,
            "singularName": kind.lower(),
            "namespaced": kind != "Namespace",
            "verbs": verbs,
        }
        for kind in _SERVED
        if RESOURCES[kind].root == root
    ]


def _place(path: str) -> tuple[str, str, str]:
    """Kind, namespace and name that a path means."""
    parts = path.strip("/").split("/")
    split = 2 if parts[0] == "api" else 3
    root, rest = "/" + "/".join(parts[:split]), parts[split:]
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    return _BY_PATH[root, rest[0]], namespace, rest[1] if len(rest) > 1 else ""


def _json(data: bytes) -> web.Response:
    return web.Response(body=data, content_type="application/json")


def _missing() -> web.Response:
    return web.json_response({"kind": "Status", "reason": "NotFound", "code": 404}, status=404)


@asynccontextmanager
async def _operator(url: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """The operator's process, until it has ended by SIGTERM."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config"
        named = {"context": {"cluster": "c", "user": "u"}, "name": "bench"}
        found = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "bench",
            "contexts": [named],
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "users": [{"name": "u", "user": {}}],
        }
        config.write_text(json.dumps(found), encoding="utf-8")
        flags = ("--kubeconfig", str(config), "--cluster-id", "bench", "--health-port", "0")
        path = os.pathsep.join(str(_ROOT / part) for part in ("operator", "backends"))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "moorage_operator", *flags),
            env={"PATH": os.environ["PATH"], "PYTHONPATH": path},
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            yield process
        finally:
            process.terminate()
            await process.communicate()


async def _until_done(process: asyncio.subprocess.Process) -> None:
    assert process.stderr is not None
    async with asyncio.timeout(_PATIENCE):
        async for line in process.stderr:
            if _DONE in line:
                return
            sys.stderr.write(line.decode())
    raise RuntimeError("the operator ended before it had looked at all jobs")


def _cpu(pid: int) -> float:
    """Seconds of processor time that a process has taken, in all of its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _held_up(pid: int) -> float:
    """Seconds that the loop's thread could have run and had no processor, as the kernel counts."""
    text = Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii")
    return max(int(text.split()[1]) / 1e9, 0.001)


def _memory(pid: int, what: str) -> float:
    """MB, now (`VmRSS`) or at the most (`VmHWM`)."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(text.partition(f"{what}:")[2].split()[0]) / 1024


async def costs(jobs: int) -> dict[str, float]:
    """What a restart costs with so many jobs."""
    cluster = Cluster(jobs, *await settled())
    async with cluster.served() as url:
        async with _operator(url) as first:
            await _until_done(first)
        cluster.begin()
        begun = time.perf_counter()
        async with _operator(url) as process:
            await _until_done(process)
            await cluster.heard.wait()
            seconds, cpu = time.perf_counter() - begun, _cpu(process.pid)
            held_up = _held_up(process.pid)
            memory, most = _memory(process.pid, "VmRSS"), _memory(process.pid, "VmHWM")
            asked = cluster.asked.copy()
    return {
        "until all were looked at": seconds,
        "of that, others had the processor": held_up,
        "processor of the operator until then": cpu,
        "memory of the operator": memory,
        "the same, at the most": most,
        "requests": float(asked.total()),
    }


_UNITS = {
    "until all were looked at": "s",
    "of that, others had the processor": "s",
    "processor of the operator until then": "s",
    "memory of the operator": "MB",
    "the same, at the most": "MB",
    "requests": "requests",
}


def measure(*, quick: bool) -> list[Curve]:
    """Curves of a restart's time, processor, memory and requests."""
    sizes = (10, 30) if quick else (1_000, 3_000, 10_000)
    rows = [asyncio.run(costs(size)) for size in sizes]
    return [
        Curve(
            "restart",
            name,
            unit,
            "jobs",
            tuple((size, row[name]) for size, row in zip(sizes, rows, strict=True)),
            1.1,
        )
        for name, unit in _UNITS.items()
    ]
