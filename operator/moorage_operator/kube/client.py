"""The `Cluster` port on the official asynchronous client: dicts in, dicts out.

Of the client it uses the configuration (where the server is, whom it believes, who we are) and the
connection; requests are made here, so that bodies are sent as `encoding` writes them and no request
is repeated behind the loop's back. A request without an answer may have happened: the loop looks.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp
from kubernetes.aio.client import Configuration
from kubernetes.aio.client.rest import RESTClientObject
from kubernetes.aio.config import load_incluster_config, load_kube_config

from moorage_operator.kube.rest import MANAGER, cluster_error, encoded, resource_of
from moorage_operator.ports import ApiUnavailable, ClusterError, Kind, NotFound, Object, Page
from moorage_operator.watch_cache import page_of

_PAGE = "500"
_APPLY = "application/apply-patch+yaml"
_MERGE = "application/merge-patch+json"
_JSON = "application/json"
_GONE = 410
# A list of many pages may outlive the version that it reads (410), and then begins anew.
_PAGES_ANEW = 3


async def configuration(
    kubeconfig: Path | None = None, context: str | None = None
) -> Configuration:
    """How the API server is reached: by a kubeconfig file, else as a pod of the cluster.

    Raises:
        kubernetes.aio.config.ConfigException: neither is there or whole.
    """
    found = Configuration()
    if kubeconfig is not None:
        await load_kube_config(str(kubeconfig), context, found)  # type: ignore[no-untyped-call]  # the client has no types
    else:
        await asyncio.to_thread(load_incluster_config, found)
    return found


class _Connection(RESTClientObject):
    """The client's session: TLS, proxies and pools as its configuration says."""

    @property
    def session(self) -> aiohttp.ClientSession:
        if self.pool_manager is None:
            self.pool_manager = self._create_pool_manager()
        session: aiohttp.ClientSession = self.pool_manager
        return session

    @property
    def extras(self) -> dict[str, Any]:
        """What each request needs besides, by configuration."""
        wanted = {
            "server_hostname": self.configuration.tls_server_name,
            "proxy": self.proxy,
            "proxy_headers": self.proxy_headers,
        }
        return {name: value for name, value in wanted.items() if value}


class KubeCluster:
    """The API server, over HTTP. Open it in the loop that uses it, and close it there.

    Args:
        timeout: seconds that a request may take, all in all.
        told: called with the method, the code (0 without an answer) and the seconds of each.
    """

    def __init__(
        self,
        found: Configuration,
        *,
        timeout: float = 20.0,
        told: Callable[[str, int, float], None] = lambda *_: None,
    ) -> None:
        self._told = told
        self._configuration = found
        self._connection = _Connection(found)
        self._timeout = aiohttp.ClientTimeout(total=timeout, connect=min(timeout, 10.0))

    async def close(self) -> None:
        """Close the connections."""
        await self._connection.close()

    async def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """See `Cluster.get`."""
        try:
            return await self._send("GET", resource_of(kind).path(namespace, name))
        except NotFound:
            return None

    async def list(
        self, kind: Kind, namespace: str | None, labels: Mapping[str, str] | None = None
    ) -> list[Object]:
        """See `Cluster.list`."""
        selector = ",".join(f"{key}={value}" for key, value in sorted((labels or {}).items()))
        found: list[Any] = []
        async for page in self.pages(kind, namespace, selector):
            found = [*page.items] if page.first else found + page.items
        return found

    async def pages(self, kind: Kind, namespace: str | None, selector: str) -> AsyncGenerator[Page]:
        """See `Cluster.pages`."""
        for _ in range(_PAGES_ANEW):
            try:
                async for page in self._pages(kind, namespace, selector):
                    yield page
            except NotFound as error:
                # A list that took too long cannot be gone on with: its version is too old.
                if error.reason != "Expired":
                    raise
            else:
                return
        raise ApiUnavailable(f"lists of {kind} expire before their last page", "Expired")

    async def apply(self, body: Object) -> Object:
        """See `Cluster.apply`."""
        params = {"fieldManager": MANAGER, "force": "true"}
        return await self._send("PATCH", _path_of(body), body, params=params, form=_APPLY)

    async def create(self, body: Object) -> Object:
        """See `Cluster.create`."""
        path = resource_of(body["kind"]).path(body["metadata"].get("namespace"))
        return await self._send("POST", path, body, params={"fieldManager": MANAGER})

    async def try_create(self, body: Object) -> None:
        """See `Cluster.try_create`."""
        path = resource_of(body["kind"]).path(body["metadata"].get("namespace"))
        params = {"fieldManager": MANAGER, "dryRun": "All"}
        await self._send("POST", path, body, params=params)

    async def replace_status(self, body: Object) -> Object:
        """See `Cluster.replace_status`."""
        path = _path_of(body, "status")
        return await self._send("PUT", path, body, params={"fieldManager": MANAGER})

    async def patch(self, kind: Kind, namespace: str, name: str, patch: Object) -> Object:
        """See `Cluster.patch`."""
        path = resource_of(kind).path(namespace, name)
        params = {"fieldManager": MANAGER}
        return await self._send("PATCH", path, patch, params=params, form=_MERGE)

    async def delete(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        *,
        uid: str | None = None,
        grace_seconds: int | None = None,
        foreground: bool = False,
    ) -> None:
        """See `Cluster.delete`."""
        options: Object = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Foreground" if foreground else "Background",
        }
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        try:
            await self._send("DELETE", resource_of(kind).path(namespace, name), options)
        except NotFound:
            return

    async def _pages(self, kind: Kind, namespace: str | None, selector: str) -> AsyncIterator[Page]:
        """All pages of a list, each item with its kind, which lists leave out."""
        resource = resource_of(kind)
        params = {"limit": _PAGE}
        if selector:
            params["labelSelector"] = selector
        named, first = {"apiVersion": resource.api_version, "kind": resource.kind}, True
        while first or params["continue"]:
            text = await self._exchange("GET", resource.path(namespace), params=params)
            try:
                items, after = page_of(kind, text)
            except ValueError as error:
                raise ApiUnavailable(
                    f"the API server's answer is no list: kind={kind}: {error}"
                ) from error
            yield Page([{**named, **item} for item in items], first)
            params["continue"], first = after, False

    async def _send(self, method: str, path: str, body: Object | None = None, **how: Any) -> Object:
        return _object(await self._exchange(method, path, body, **how))

    async def _exchange(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        *,
        params: Mapping[str, str] | None = None,
        form: str = _JSON,
    ) -> bytes:
        """The text of a good answer."""
        data = encoded(body) if body is not None else None
        headers = {"Accept": _JSON, **({"Content-Type": form} if data is not None else {})}
        begun, code = time.monotonic(), 0
        try:
            # The token is a file that is renewed now and then.
            headers |= await self._who()
            async with self._connection.session.request(
                method,
                self._configuration.host.rstrip("/") + path,
                params=params,
                data=data,
                headers=headers,
                timeout=self._timeout,
                allow_redirects=False,
                **self._connection.extras,
            ) as response:
                text, code = await response.read(), response.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            why = str(error) or type(error).__name__
            raise ApiUnavailable(
                f"no answer from the API server: {method} {path}: {why}"
            ) from error
        finally:
            self._told(method, code, time.monotonic() - begun)
        if not 200 <= code < 300:
            raise _refusal(code, text, response.headers.get("Retry-After"))
        return text

    async def _who(self) -> dict[str, str]:
        settings: dict[str, Any] = dict(await self._configuration.auth_settings())
        wanted = (one for one in settings.values() if one and one["in"] == "header")
        return {one["key"]: one["value"] for one in wanted if one["value"]}


def _path_of(body: Object, subresource: str = "") -> str:
    meta = body["metadata"]
    return resource_of(body["kind"]).path(meta.get("namespace"), meta["name"], subresource)


def _object(text: bytes) -> Object:
    try:
        body = json.loads(text)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise ApiUnavailable("the API server's answer is no JSON object")
    return body


def _refusal(code: int, text: bytes, retry_after: str | None) -> ClusterError:
    if code < 400:
        return ApiUnavailable(f"the API server's answer is no JSON object: status={code}")
    try:
        body = json.loads(text)
    except ValueError:
        body = None
    status = body if isinstance(body, dict) else None
    if code == _GONE:
        status = {**(status or {}), "reason": "Expired"}
    seconds = float(retry_after) if retry_after and retry_after.isdecimal() else None
    return cluster_error(code, status, seconds)
