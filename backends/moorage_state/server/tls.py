"""TLS between the pods of a job: one certificate for all of them, which each side shows.

Decides what is believed: a certificate of the authority in `ca.crt` with the one name that all of
the job's have, whatever address it comes from, since pods have none that lasts. Files are looked at
before every connection, so that a renewed certificate is taken up without a restart; one that would
not do is passed over, with a word, while the one before does. Called by state servers and their
clients and by the driver's endpoint. A Unix socket needs none of it.

    <directory>/tls.crt   the certificate and what stands between it and the authority
    <directory>/tls.key   its key, without a password
    <directory>/ca.crt    the authority
"""

import logging
import socket
import ssl
import threading
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from moorage_state.errors import UserError
from moorage_state.file_marks import Marks, marks
from moorage_state.mounted_secrets import MountedSecret, say

_log = logging.getLogger(__name__)

_NAMES = ("tls.crt", "tls.key", "ca.crt")
_LONGEST_NAME = 253


class BadCertificate(UserError):
    """The files are missing, do not fit together, or are not what another pod would believe."""

    code = "bad_certificate"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where a process finds its certificate, and the DNS name that all of the job's have."""

    directory: str
    name: str


def tls_files(directory: str, name: str) -> TlsFiles | None:
    """What two options of a command name; None if neither is given. Raises `UserError` for one."""
    if bool(directory) != bool(name):
        raise UserError(
            f"options for TLS go together: --tls-dir={directory!r} --tls-name={name!r}; give both "
            f"or none"
        )
    return TlsFiles(directory, name) if directory else None


@dataclass(frozen=True, slots=True)
class _Contexts:
    """What was made of the files as they were once; `ends`: the certificate, by POSIX time."""

    server: ssl.SSLContext
    mutual: ssl.SSLContext
    client: ssl.SSLContext
    ends: float = 0.0


class Certificates:
    """Contexts of the files as they are now. Safe for threads."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._paths = [Path(files.directory, name) for name in _NAMES]
        self._lock = threading.Lock()
        self._seen: Marks = ()
        self._passed_over: Marks = ()
        self._made: _Contexts | None = None

    def check(self) -> None:
        """Raise `BadCertificate` as a connection would, naming the files and what is wrong."""
        self._now()

    def server(self) -> ssl.SSLContext:
        """For a server that knows its clients by other means. Raises BadCertificate."""
        return self._now().server

    def accepted(self, connected: socket.socket) -> ssl.SSLSocket:
        """A connection that was accepted, before its handshake, which shows who the client is."""
        return self._now().mutual.wrap_socket(
            connected, server_side=True, do_handshake_on_connect=False
        )

    def connected(self, connection: socket.socket) -> ssl.SSLSocket:
        """A connection that was made, after its handshake.

        Raises `BadCertificate` where our own files will not do, OSError where the peer is not
        believed.
        """
        return self._now().client.wrap_socket(connection, server_hostname=self._files.name)

    def refuse_others(self, peer: ssl.SSLSocket) -> None:
        """After a handshake as a server: `UserError` for a client that has not the job's name."""
        names = [name.lower() for kind, name in _names_of(peer.getpeercert()) if kind == "DNS"]
        wanted = self._files.name
        if wanted not in names and f"*.{wanted.partition('.')[2]}" not in names:
            raise UserError(
                f"certificate of a client is another's: wanted={wanted} found={names}; it has the "
                f"same authority, and is not of this job"
            )

    def _now(self) -> _Contexts:
        with self._lock:
            seen = marks(self._paths)
            made, refused = self._made, False
            if made is None or seen != self._seen:
                made, refused = self._taken_up(seen)
            say("certificate", MountedSecret(refused, made.ends))
            return made

    def _taken_up(self, seen: Marks) -> tuple[_Contexts, bool]:
        """What is to be used by now, and whether the files that are there were refused."""
        try:
            made = _contexts(self._files)
        except BadCertificate as error:
            if self._made is None:
                raise
            # Tried again with the next connection: one that begins to be valid in a moment, by
            # this node's clock, or was not read for once, is there for months as it is.
            if seen != self._passed_over:
                _log.warning("certificate not taken up, the one before is used: %s", error)
            self._passed_over = seen
            return self._made, True
        if self._made is not None:
            _log.info("certificate taken up: directory=%s", self._files.directory)
        self._made, self._seen = made, seen
        return made, False


@lru_cache(maxsize=8)
def certificates(files: TlsFiles) -> Certificates:
    """Those of this process, which has the contexts for all of its connections."""
    return Certificates(files)


def _contexts(files: TlsFiles) -> _Contexts:
    try:
        made = _Contexts(
            server=_context(files, ssl.PROTOCOL_TLS_SERVER),
            mutual=_context(files, ssl.PROTOCOL_TLS_SERVER, mutual=True),
            client=_context(files, ssl.PROTOCOL_TLS_CLIENT, mutual=True),
        )
        made = replace(made, ends=_shake_hands(made, files.name))
    except ssl.SSLError as error:
        why = getattr(error, "verify_message", "") or error.reason or str(error)
        raise BadCertificate(
            f"the certificate will not do: directory={files.directory} name={files.name} "
            f"error={why}; it must be of the authority in ca.crt, valid now, for server and "
            f"client, and have that DNS name"
        ) from error
    except OSError as error:
        raise BadCertificate(
            f"the certificate cannot be read: directory={files.directory} files={list(_NAMES)} "
            f"error={error.strerror or error}; the Secret must have these keys"
        ) from error
    return made


def _context(files: TlsFiles, kind: int, *, mutual: bool = False) -> ssl.SSLContext:
    folder = Path(files.directory)
    context = ssl.SSLContext(kind)
    # Only our own programs meet where both sides show a certificate; others ask the endpoint.
    context.minimum_version = ssl.TLSVersion.TLSv1_3 if mutual else ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key", password=_no_password)
    if mutual:
        context.load_verify_locations(folder / "ca.crt")
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _no_password() -> str:
    return ""  # else OpenSSL would ask at the terminal


def _shake_hands(made: _Contexts, name: str) -> float:
    """With ourselves: whatever a peer would find wrong is found here. Raises `ssl.SSLError`.

    Returns the end of the certificate, by POSIX time.
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = made.mutual.wrap_bio(to_server, to_client, server_side=True)
    client = made.client.wrap_bio(to_client, to_server, server_hostname=name)
    for side in (client, server, client, server):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    return ssl.cert_time_to_seconds(str((client.getpeercert() or {})["notAfter"]))


def _names_of(certificate: dict[str, Any] | None) -> list[tuple[str, str]]:
    return list((certificate or {}).get("subjectAltName", ()))
