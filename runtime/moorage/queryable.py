"""Asking a running job for its state: the client of queryable state.

Decides how a question reaches a job (its driver's endpoint by HTTP, or the socket of a job on this
machine), when it is asked again, and how answers that come in pages are put together. Called by
`moorage state get --live` and by programs; needs neither Spark nor what keeps state.
"""

import http.client
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from moorage.driver.lookup_requests import MOST_BYTES, MOST_KEYS, LookupRequest
from moorage_api.driver import STATE_PATH
from moorage_state.errors import MoorageError, Retryable, UserError
from moorage_state.formats import read_json

_PAUSE_SECONDS = 0.25
_AGAIN = (429, 503)
_REFUSED = range(400, 500)
_PORTION_BYTES = MOST_BYTES * 3 // 4
"""Of the keys of one question: the rest of it needs room, too."""


class QueryableStateClient:
    """Asks one job; a context manager. For one thread at a time.

    Values are plain JSON data, as `moorage state get -o json` shows them: times are ISO 8601,
    decimals and numbers that are not finite are text, bytes hexadecimal digits. What is answered is
    what the last committed epoch left, each key by itself: not a snapshot over several keys.

    Args:
        address: `http://host:port` or `https://host:port` of the driver's endpoint.
        token: one that the endpoint takes.
        ca_file: who signed its certificate; what the system trusts if None.
        server_name: the name in it, where it is reached by another one.
        timeout: seconds that a question may take; while the state moves it is asked again.
    """

    def __init__(
        self,
        address: str,
        token: str,
        *,
        ca_file: str | Path | None = None,
        server_name: str | None = None,
        timeout: float = 15.0,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._timeout = timeout
        self._clock = clock
        self._pause = pause
        self._way: EndpointConnection | _Socket
        self._way = EndpointConnection(address, token, ca_file, server_name, timeout)

    @classmethod
    def of_local_job(cls, manifest: str | Path, *, timeout: float = 15.0) -> Self:
        """Asks the job that `moorage run` runs from this manifest, here and as this user.

        Raises:
            ManifestError: it is no manifest of a job.
        """
        client = cls("http://localhost", "", timeout=timeout)
        client._way = _Socket(Path(manifest), timeout)
        return client

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection."""
        self._way.close()

    def get(self, name: str, key: Any, *, map_key: Any = None, namespace: Any = None) -> Any:
        """What one key has; None for nothing.

        Args:
            name: what the state's descriptor is `queryable` by.
            key: the key; a list of its columns where it has several.
            map_key: only this entry of a map, whose value is given.
            namespace: only this one, of a state that has several for a key.

        Raises:
            UserError: no such state, or the key is not of its type.
            Retryable: the job does not answer, or cannot at the moment.
        """
        (value,) = self.get_many(name, [key], map_key=map_key, namespace=namespace)
        return value

    def get_many(
        self, name: str, keys: Sequence[Any], *, map_key: Any = None, namespace: Any = None
    ) -> list[Any]:
        """What each of many keys has, in their order: one question for a thousand short ones."""
        found: list[Any] = []
        for some in _portions(_plain(keys)):
            request = LookupRequest(
                name, some, map_key=_plain(map_key), namespace=_plain(namespace)
            )
            for result in self.whole(request)["results"]:
                value = result["value"] if result["found"] else None
                found.append(value[0]["value"] if value and map_key is not None else value)
        return found

    def entries(
        self,
        name: str,
        key: Any,
        *,
        map_key_prefix: str | None = None,
        namespace: Any = None,
        page: int = 1_000,
    ) -> Iterator[Any]:
        """The elements of a list, the entries of a map or the namespaces of one key, page by page.

        Each page is of one committed epoch, and the next one may be of a later.
        """
        request = LookupRequest(
            name,
            [_plain(key)],
            map_key_prefix=map_key_prefix,
            namespace=_plain(namespace),
            limit=page,
        )
        held: list[Any] = []
        while True:
            answer = self.look_up(request)
            (result,) = answer["results"]
            splits = _splits(answer)
            found = _joined(held, result["value"] or [], splits=splits)
            if result["next"] is None:
                yield from found
                return
            held = found[-1:] if splits else []
            yield from found[: len(found) - len(held)]
            request = replace(request, after=result["next"])

    def whole(self, request: LookupRequest) -> dict[str, Any]:
        """The answer to a look-up with all pages of each key; `epoch` is that of the first."""
        answer = self.look_up(request)
        for at, result in enumerate(answer["results"]):
            while result["next"] is not None:
                after = result["next"] or None
                part = replace(request, keys=[request.keys[at]], after=after)
                (more,) = self.look_up(part)["results"]
                _add(result, more, splits=_splits(answer))
        return answer

    def look_up(self, request: LookupRequest) -> dict[str, Any]:
        """One answer of the job as it is, asked again while it cannot be given."""
        until = self._clock() + self._timeout
        while True:
            try:
                return self._way.ask(request)
            except Retryable:
                if self._clock() + _PAUSE_SECONDS >= until:
                    raise
            self._pause(_PAUSE_SECONDS)


class EndpointConnection:
    """The driver's endpoint, over one connection.

    Args:
        ca_data: who signed its certificate, as the text of a file; besides `ca_file`.
    """

    def __init__(
        self,
        address: str,
        token: str,
        ca_file: str | Path | None,
        server_name: str | None,
        timeout: float,
        *,
        ca_data: str | None = None,
    ) -> None:
        parts = urlsplit(address)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise UserError(
                f"not the address of a driver's endpoint: address={address!r:.200}; write "
                f"http://host:port or https://host:port"
            )
        self._address = address
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        if parts.scheme == "http":
            self._connection = _WholeMessages(parts.hostname, parts.port, timeout)
            return
        try:
            context = ssl.create_default_context(cafile=ca_file, cadata=ca_data)
        except OSError as error:
            raise UserError(f"certificates cannot be read: file={ca_file} error={error}") from error
        self._connection = _NamedServer(
            parts.hostname, parts.port, context, server_name or parts.hostname, timeout
        )

    def ask(self, request: LookupRequest) -> dict[str, Any]:
        """The answer to a look-up. Raises as `call`."""
        path = f"{STATE_PATH}/{_checked(request.name)}"
        answer: dict[str, Any] = read_json(self.call("POST", path, request.to_json()))
        return answer

    def call(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """What the endpoint answers.

        Raises:
            UserError: it refuses, or its certificate is not believed.
            Retryable: it does not answer, or cannot at the moment.
        """
        try:
            self._connection.request(method, path, body, self._headers)
            reply = self._connection.getresponse()
            data = reply.read()
        except ssl.SSLCertVerificationError as error:
            self.close()
            raise UserError(
                f"the endpoint's certificate is not believed: address={self._address} "
                f"error={error.verify_message}; give the file of who signed it, and its name"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            self.close()
            why = str(error) or type(error).__name__
            raise Retryable(
                f"the driver's endpoint does not answer: address={self._address} error={why}; see "
                f"that the job runs and the address is forwarded"
            ) from error
        if reply.status != http.HTTPStatus.OK:
            raise _refusal(reply.status, data)
        return data

    def close(self) -> None:
        """End the connection; a later call makes another."""
        self._connection.close()


class _Socket:
    """The control socket of a job on this machine."""

    def __init__(self, manifest: Path, timeout: float) -> None:
        # Here, and not above: who asks a cluster's job needs none of it.
        from moorage.driver.control import control_path
        from moorage.driver.settings import JobSettings
        from moorage_api import load_manifest

        settings = JobSettings.of(load_manifest(manifest), manifest.absolute().parent)
        self._path = control_path(settings.checkpoint_dir)
        self._timeout = timeout

    def ask(self, request: LookupRequest) -> dict[str, Any]:
        from moorage.driver.control import ask_for_state

        answer: dict[str, Any] = ask_for_state(self._path, request, self._timeout)
        return answer

    def close(self) -> None:
        """Each question has a connection of its own."""


class _WholeMessages(http.client.HTTPConnection):
    """Sends head and body of a request together: the driver wakes up once for both."""

    _pieces: list[bytes] | None = None

    def request(self, *args: Any, **kwargs: Any) -> None:
        pieces: list[bytes] = []
        self._pieces = pieces
        try:
            super().request(*args, **kwargs)
        finally:
            self._pieces = None
        self.send(b"".join(pieces))

    def send(self, data: Any) -> None:
        if self._pieces is None:
            super().send(data)
        else:
            self._pieces.append(data)


class _NamedServer(_WholeMessages, http.client.HTTPSConnection):
    """Believes a server that shows a certificate of another name than it is reached by."""

    def __init__(
        self, host: str, port: int | None, context: ssl.SSLContext, name: str, timeout: float
    ) -> None:
        super().__init__(host, port, timeout=timeout, context=context)
        self._trusted = context
        self._name = name

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        self.sock = self._trusted.wrap_socket(self.sock, server_hostname=self._name)


def read_token(file: Path) -> str:
    """The token that lies in a file. Raises UserError: it cannot be read."""
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the token cannot be read: file={file} error={error}") from error


def _refusal(status: int, data: bytes) -> MoorageError:
    try:
        text = str(read_json(data)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        text = f"the endpoint answers otherwise than a driver does: status={status}"
    if status in _AGAIN:
        return Retryable(text)
    return UserError(text) if status in _REFUSED else MoorageError(text)


def _checked(name: str) -> str:
    if not name or not all(char.isalnum() or char in "._-" for char in name) or not name.isascii():
        raise UserError(
            f"not a name that a state is queryable by: queryable={name!r:.80}; it has letters, "
            f"digits, dots, dashes and underscores"
        )
    return name


def _plain(value: Any) -> Any:
    """Keys as JSON has them; times, decimals and bytes as the text that is read as such."""
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, bytes):
        return value.hex()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _portions(keys: list[Any]) -> Iterator[list[Any]]:
    """The keys, in portions that are not too many or too long for one question."""
    for at in range(0, len(keys), MOST_KEYS):
        yield from _short_enough(keys[at : at + MOST_KEYS])


def _short_enough(keys: list[Any]) -> Iterator[list[Any]]:
    if len(keys) > 1 and len(LookupRequest("", keys).to_json()) > _PORTION_BYTES:
        middle = len(keys) // 2
        yield from _short_enough(keys[:middle])
        yield from _short_enough(keys[middle:])
    else:
        yield keys


def _splits(answer: dict[str, Any]) -> bool:
    """Whether a page may end within what one namespace has."""
    return bool(answer["byNamespace"]) and answer["kind"] in {"list", "map"}


def _joined(before: list[Any], after: list[Any], *, splits: bool) -> list[Any]:
    """Two pages as one; a namespace that both have a part of is one entry."""
    if splits and before and after and before[-1]["namespace"] == after[0]["namespace"]:
        before[-1]["value"] += after[0]["value"]
        after = after[1:]
    return before + after


def _add(result: dict[str, Any], more: dict[str, Any], *, splits: bool) -> None:
    """Put a page behind what is there."""
    before, after = result["value"], more["value"]
    result["next"] = more["next"]
    result["found"] = bool(result["found"] or more["found"])
    result["epoch"] = more["epoch"] if result["epoch"] is None else result["epoch"]
    if after is None or before is None:
        result["value"] = before if after is None else after
        return
    result["value"] = _joined(before, after, splits=splits)
