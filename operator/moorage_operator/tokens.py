"""The bearer tokens of drivers: one Secret a job, read once and never shown."""

import secrets
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Callable

from moorage_operator.children import names, token_secret
from moorage_operator.objects import is_controlled_by
from moorage_operator.ports import AlreadyExists, Cluster, Object
from moorage_operator.world import Meta

__all__ = ["Tokens"]


def _new_token() -> str:
    return secrets.token_urlsafe(32)


class Tokens:
    """Tokens by job, as their Secrets have them; kept, so that a pass costs no request."""

    def __init__(self, cluster: Cluster, make: Callable[[], str] = _new_token) -> None:
        self._cluster = cluster
        self._make = make
        self._known: dict[str, str] = {}

    async def of(self, meta: Meta) -> str | None:
        """The job's token; None if there is no Secret of this very object with one.

        Raises:
            ClusterError: the API server could not say.
        """
        if meta.uid not in self._known:
            name = names.token_secret_name(meta.name)
            found = await self._cluster.get("Secret", meta.namespace, name)
            token = _token(found) if found is not None and is_controlled_by(found, meta.uid) else ""
            if token:
                self._known[meta.uid] = token
        return self._known.get(meta.uid)

    def known(self, uid: str) -> str | None:
        """The token that was read last, if any; asks nobody."""
        return self._known.get(uid)

    async def ensure(self, meta: Meta) -> bool:
        """Make the Secret if there is none; say whether that was needed.

        Raises:
            ClusterError: the API server refused, or another object's Secret has the name.
        """
        self.drop(meta.uid)
        if await self.of(meta) is not None:
            return False
        try:
            await self._cluster.create(token_secret(meta, self._make()))
        except AlreadyExists as error:
            if await self.of(meta) is not None:
                return False
            name = names.token_secret_name(meta.name)
            raise AlreadyExists(
                f"the Secret is another object's: name={name}; it goes with its owner, "
                "else delete it",
                error.reason,
            ) from error
        return True

    def drop(self, uid: str) -> None:
        """Forget a token that a driver refused, or whose job is gone."""
        self._known.pop(uid, None)


def _token(secret: Object) -> str:
    try:
        return b64decode((secret.get("data") or {}).get("token", ""), validate=True).decode()
    except (NotBase64, UnicodeDecodeError, TypeError):
        return ""
