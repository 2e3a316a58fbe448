"""A real API server with the interface of `ApiStore`: what people and kubelets of a world do there.

One namespace is the whole world. No scheduler takes its pods and no kubelet has its nodes, so that
nothing runs; the controllers of the cluster (garbage, namespaces) are real and are waited for.
Stamps of the server's clock are told as times of the world's.
"""

import json
import ssl
import tempfile
import time
from base64 import b64decode
from datetime import timedelta
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import yaml

from moorage_operator.kube.rest import RESOURCES
from moorage_testing.kube.merging import copied
from moorage_testing.kube.refusals import ApiRefusal

__all__ = ["RemoteApi", "RemotePort", "Stamps"]

NOBODY = "moorage.dev-nobody"
"""A scheduler that does not exist."""

TOLD = ("StatefulSparkJob", "StatefulSparkSnapshot", "Pod")
"""Kinds whose changes watchers hear of, as the operator's watches do."""

_WAIT_SECONDS = 30.0
_FORMS = {dict: "application/merge-patch+json", list: "application/json-patch+json"}
_APPLY = "application/apply-patch+yaml"


class Stamps:
    """When objects were made and deleted, on the clock of a world."""

    def __init__(self, now):
        self._now = now
        self._made = {}
        self._ends = {}

    def told(self, found):
        """The object with stamps of the world's clock."""
        if not isinstance(found, dict) or "metadata" not in found:
            return found
        meta = found["metadata"]
        if "creationTimestamp" in meta:
            meta["creationTimestamp"] = self._made.setdefault(meta["uid"], self._stamp(0))
        if "deletionTimestamp" in meta:
            grace = meta.get("deletionGracePeriodSeconds") or 0
            key = (meta["uid"], grace)
            meta["deletionTimestamp"] = self._ends.setdefault(key, self._stamp(grace))
        return found

    def _stamp(self, later):
        return (self._now() + timedelta(seconds=later)).strftime("%Y-%m-%dT%H:%M:%SZ")


class RemotePort:
    """The operator's own client, in a world: its namespace, its clock, pods that nothing runs."""

    def __init__(self, cluster, namespace, stamps):
        self._cluster = cluster
        self._namespace = namespace
        self._stamps = stamps

    async def get(self, kind, namespace, name):
        return self._stamps.told(await self._cluster.get(kind, namespace, name))

    async def list(self, kind, namespace, labels=None):
        found = await self._cluster.list(kind, namespace or self._namespace, labels)
        return [self._stamps.told(one) for one in found]

    async def pages(self, kind, namespace, selector):
        async for page in self._cluster.pages(kind, namespace or self._namespace, selector):
            yield page._replace(items=[self._stamps.told(one) for one in page.items])

    async def apply(self, body):
        return self._stamps.told(await self._cluster.apply(unscheduled(body)))

    async def create(self, body):
        return self._stamps.told(await self._cluster.create(unscheduled(body)))

    async def try_create(self, body):
        await self._cluster.try_create(unscheduled(body))

    async def replace_status(self, body):
        return self._stamps.told(await self._cluster.replace_status(body))

    async def patch(self, kind, namespace, name, patch):
        return self._stamps.told(await self._cluster.patch(kind, namespace, name, patch))

    async def delete(self, kind, namespace, name, **how):
        await self._cluster.delete(kind, namespace, name, **how)


class RemoteApi:
    """What tests do on behalf of people, kubelets and nodes."""

    def __init__(self, file, context, namespace, stamps):
        self.namespace = namespace
        self.watchers = []
        self._stamps = stamps
        self._host, self._ssl = _reach(file, context)
        self._connection = None
        self._known = {}
        self._owners = set()

    # -- reading

    def get(self, kind, namespace, name):
        """The object, or None."""
        try:
            return self._ask("GET", self._path(kind, namespace, name))
        except ApiRefusal as refusal:
            if refusal.code == 404:
                return None
            raise

    def list(self, kind, namespace=None, labels=None):
        """Objects of the world by name."""
        selector = ",".join(f"{key}={value}" for key, value in (labels or {}).items())
        query = {"labelSelector": selector} if selector else {}
        resource = RESOURCES[kind]
        named = {"apiVersion": resource.api_version, "kind": kind}
        items = self._ask("GET", self._path(kind, namespace), query=query)["items"]
        return [self._stamps.told({**named, **item}) for item in items]

    def peek(self, kind):
        """As `list`, of the world's namespace."""
        return self.list(kind)

    def exists(self, kind, namespace, name):
        """Whether it is there."""
        return self.get(kind, namespace, name) is not None

    # -- writing

    def create(self, body):
        """POST."""
        body = unscheduled(body)
        return self._ask("POST", self._path(body["kind"], body["metadata"].get("namespace")), body)

    def replace_status(self, body):
        """PUT of /status."""
        meta = body["metadata"]
        path = self._path(body["kind"], meta.get("namespace"), meta["name"], "status")
        return self._ask("PUT", path, body)

    def patch(self, kind, namespace, name, patch, subresource=""):
        """A merge patch if that is an object, a JSON patch if it is a list."""
        path = self._path(kind, namespace, name, subresource)
        return self._ask("PATCH", path, patch, form=_FORMS[type(patch)])  # type: ignore[index]  # a list or an object

    def apply(self, body, manager="kubectl"):
        """Server-side apply, forced."""
        meta = body["metadata"]
        path = self._path(body["kind"], meta.get("namespace"), meta["name"])
        query = {"fieldManager": manager, "force": "true"}
        return self._ask("PATCH", path, unscheduled(body), query=query, form=_APPLY)

    def delete(self, kind, namespace, name, *, uid=None, grace=None, propagation="Background"):
        """DELETE with preconditions."""
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        options |= {"preconditions": {"uid": uid}} if uid else {}
        options |= {"gracePeriodSeconds": grace} if grace is not None else {}
        return self._ask("DELETE", self._path(kind, namespace, name), options)

    # -- controllers and kubelets

    def set_status(self, kind, namespace, name, **status):
        """Put fields into the status, as a kubelet or another controller does."""
        return self.patch(kind, namespace, name, {"status": status}, subresource="status")

    def bind(self, namespace, name, node):
        """Give a pod its node, as a scheduler does."""
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        self._ask("POST", self._path("Pod", namespace, name, "binding"), body)

    def tell_news(self):
        """Look at what watches would have told by now, and call the watchers back."""
        news = {
            (kind, found["metadata"]["name"]): found for kind in TOLD for found in self.list(kind)
        }
        for key, found in news.items():
            was = self._known.get(key)
            if was is None or was["metadata"]["uid"] != found["metadata"]["uid"]:
                self._tell("ADDED", found)
            elif was["metadata"]["resourceVersion"] != found["metadata"]["resourceVersion"]:
                self._tell("MODIFIED", found)
        for key in self._known.keys() - news.keys():
            self._tell("DELETED", self._known[key])
        self._known = news

    def _tell(self, event, found):
        for watcher in list(self.watchers):
            watcher(event, copied(found))

    def collect(self):
        """Wait until the cluster's controllers have done what is theirs to do now."""
        owners = {found["metadata"]["uid"] for kind in TOLD for found in self.list(kind)}
        if owners >= self._owners and not self._foreground():
            self._owners = owners
            return
        self._owners = owners
        end = time.monotonic() + _WAIT_SECONDS
        while self._uncollected() or self._foreground():
            if time.monotonic() > end:
                raise AssertionError("the cluster's controllers collect nothing: are there any?")
            time.sleep(0.1)

    def _uncollected(self):
        """Objects that live although all of their owners are gone."""
        owners = {found["metadata"]["uid"] for kind in TOLD for found in self.list(kind)}
        kinds = ("Pod", "ConfigMap", "Secret", "Service", "StatefulSparkSnapshot")
        return [
            found
            for kind in kinds
            for found in self.list(kind)
            if (mine := found["metadata"].get("ownerReferences"))
            and "deletionTimestamp" not in found["metadata"]
            and not owners & {owner["uid"] for owner in mine}
        ]

    def _foreground(self):
        """Objects that only wait for their children, of which there are none."""
        pods = self.list("Pod")
        parents = {o["uid"] for p in pods for o in p["metadata"].get("ownerReferences", [])}
        return [
            pod
            for pod in pods
            if pod["metadata"].get("finalizers") == ["foregroundDeletion"]
            and pod["metadata"]["uid"] not in parents
        ]

    # -- requests

    def raw(self, path):
        """The answer to a GET of any path."""
        return self._ask("GET", path)

    def close(self):
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _path(self, kind, namespace, name="", subresource=""):
        resource = RESOURCES[kind]
        return resource.path((namespace or self.namespace), name, subresource)

    def _ask(self, method, path, body=None, *, query=None, form="application/json"):
        where = f"{path}?{urlencode(query)}" if query else path
        data = json.dumps(body).encode() if body is not None else None
        headers = {"Accept": "application/json", "Content-Type": form}
        for again in (True, False):
            connection = self._connection or HTTPSConnection(
                self._host, context=self._ssl, timeout=_WAIT_SECONDS
            )
            self._connection = connection
            try:
                connection.request(method, where, data, headers)
                response = connection.getresponse()
                text = response.read()
                break
            except (HTTPException, OSError):
                # An idle connection that the server has closed.
                self.close()
                if not again or method == "POST":
                    raise
        answer = json.loads(text)
        if response.status >= 400:
            raise ApiRefusal(
                response.status,
                answer.get("reason", ""),
                answer.get("message", ""),
                answer.get("details"),
            )
        return self._stamps.told(answer)


def unscheduled(body):
    """A pod that no scheduler takes; anything else as it is."""
    if body["kind"] != "Pod":
        return body
    return {**body, "spec": {**body["spec"], "schedulerName": NOBODY}}


def _reach(file, context):
    """Host and TLS of a kubeconfig's context with client certificates."""
    config = yaml.safe_load(Path(file).read_text())
    named = {
        kind: {one["name"]: one[kind[:-1]] for one in config[kind]}
        for kind in ("contexts", "clusters", "users")
    }
    chosen = named["contexts"][context or config["current-context"]]
    cluster, user = named["clusters"][chosen["cluster"]], named["users"][chosen["user"]]
    authority = cluster.get("certificate-authority-data")
    context = ssl.create_default_context(
        cafile=cluster.get("certificate-authority"),
        cadata=b64decode(authority).decode() if authority else None,
    )
    with tempfile.NamedTemporaryFile(suffix=".pem") as pem:
        for part in ("client-certificate", "client-key"):
            text = user.get(f"{part}-data")
            pem.write(b64decode(text) if text else Path(user[part]).read_bytes())
            pem.write(b"\n")
        pem.flush()
        context.load_cert_chain(pem.name)
    return urlsplit(cluster["server"]).netloc, context
