"""Speaks to drivers: a doorbell and a progress view over HTTP, and nothing that is believed alone.

A driver is a program of a user's, in a pod of a user's: its answers are bounded in size and time,
redirects are not followed, proxies are not asked, and the token never leaves the header.
"""

import json
import ssl
from functools import lru_cache
from typing import Any, TypeVar

import aiohttp
from pydantic import BaseModel, ValidationError

from moorage_api.driver import STATE_PATH, DriverState, RequestView
from moorage_operator.ports import (
    DriverTarget,
    EndpointRefused,
    EndpointUnreachable,
    EndpointUntrusted,
)

_View = TypeVar("_View", bound=BaseModel)

# A report has some kilobytes; a driver is a user's program, and may answer with anything.
_LARGEST = 256 * 1024
_ACCEPTED = (200, 202)
_LONGEST = 512
# A driver that ends says so with it: as good as no answer, since its last words are to come.
_ENDING = 503
_UNAUTHORIZED = "unauthorized"


class HttpDrivers:
    """The `DriverClient` port. Open it in the loop that uses it, and close it there.

    Args:
        timeout: seconds for a whole exchange.
        connect: seconds for reaching the pod.
        connections: at once; who asks more drivers waits, which counts as reaching the pod.
    """

    def __init__(
        self,
        *,
        timeout: float = 5.0,
        connect: float = 2.0,
        connections: int = 64,
    ) -> None:
        self._connections = connections
        self._timeout = aiohttp.ClientTimeout(total=timeout, connect=connect)
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def state(self, target: DriverTarget) -> DriverState:
        """See `DriverClient.state`."""
        data = await self._send("GET", target, STATE_PATH, None)
        return _read(DriverState, data)

    async def ask(self, target: DriverTarget, path: str, body: BaseModel) -> RequestView:
        """See `DriverClient.ask`."""
        wanted = body.model_dump(mode="json", by_alias=True, exclude_none=True)
        return _read(RequestView, await self._send("POST", target, path, wanted))

    async def _send(
        self, method: str, target: DriverTarget, path: str, body: dict[str, Any] | None
    ) -> Any:
        """Once more with the other token, where an older runtime does not know the first one."""
        try:
            return await self._sent(method, target, target.token, path, body)
        except EndpointRefused as error:
            if error.code != _UNAUTHORIZED or not target.older_token:
                raise
        return await self._sent(method, target, target.older_token, path, body)

    async def _sent(
        self, method: str, target: DriverTarget, token: str, path: str, body: dict[str, Any] | None
    ) -> Any:
        scheme, secured = "http", {}
        if target.authority:
            scheme, secured = "https", _secured(target)
        host = f"[{target.ip}]" if ":" in target.ip else target.ip
        try:
            async with self._opened().request(
                method,
                f"{scheme}://{host}:{target.port}{path}",
                json=body,
                headers={"Authorization": f"Bearer {token}", "Accept": "application/json"},
                timeout=self._timeout,
                allow_redirects=False,
                **secured,
            ) as response:
                text = await _bounded(response)
                return _answer(response.status, text, path)
        except aiohttp.ClientConnectorCertificateError as error:
            raise EndpointUntrusted(
                f"the driver's certificate is not believed: path={path} name={target.name}: "
                f"{_why(error)}; renew the certificate in the Secret of spec.security.tls"
            ) from error
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            why = str(error) or type(error).__name__
            raise EndpointUnreachable(f"no answer from the driver: path={path}: {why}") from error

    def _opened(self) -> aiohttp.ClientSession:
        """Answers are not unpacked: a small one may unpack to a huge one."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
                # The next question comes in half a minute, and idle connections are not counted:
                # with thousands of drivers they would be the files that a process may open.
                connector=aiohttp.TCPConnector(
                    limit=self._connections, limit_per_host=2, force_close=True
                ),
            )
        return self._session


def _secured(target: DriverTarget) -> dict[str, Any]:
    """The peer is known by the authority and a name, whatever its address."""
    return {"ssl": _context(target.authority), "server_hostname": target.name}


# Drivers are asked in turn, so that with one authority too many each question would make one anew:
# 0.4 ms. A context has 17 KB, and most fleets have few authorities.
@lru_cache(maxsize=16_384)
def _context(authority: str) -> ssl.SSLContext:
    """One for each authority, since making one takes half as long as a handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_verify_locations(cadata=authority)
    except (ssl.SSLError, ValueError) as error:
        raise EndpointUntrusted(
            f"no driver can be believed by ca.crt of the Secret of spec.security.tls: {error}; put "
            f"the authority's certificate there, as PEM"
        ) from error
    return context


def _why(error: aiohttp.ClientConnectorCertificateError) -> str:
    inner = error.certificate_error
    return getattr(inner, "verify_message", "") or str(inner)


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    """The body; raises ValueError where it is larger than any answer."""
    text = bytearray()
    async for part in response.content.iter_chunked(64 * 1024):
        text += part
        if len(text) > _LARGEST:
            raise ValueError(f"the answer is larger than {_LARGEST} bytes")
    return bytes(text)


def _answer(status: int, text: bytes, path: str) -> Any:
    """The data of a good answer.

    Raises:
        EndpointRefused: the driver says why not.
        EndpointUnreachable: it is no answer of a driver, or of one that ends.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        data = None
    if status in _ACCEPTED and isinstance(data, dict):
        return data
    error = data.get("error") if isinstance(data, dict) else None
    if status == _ENDING or not isinstance(error, dict):
        raise EndpointUnreachable(f"no answer of a driver: path={path} status={status}")
    code = str(error.get("code") or status)
    raise EndpointRefused(code, str(error.get("message") or "")[:_LONGEST])


def _read(model: type[_View], data: Any) -> _View:
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise EndpointUnreachable(
            f"the driver's answer cannot be read: {where}: {first['msg']}"
        ) from error
