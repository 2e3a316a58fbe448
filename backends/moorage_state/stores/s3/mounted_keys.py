"""The keys of a store that lie in files, as the kubelet brings a Secret, and change under way.

Asked by the client before each request. Whoever puts new keys into the Secret, waits until they
have arrived, and only then takes the old ones back interrupts nothing. Only `calls` asks here;
importing it takes as long as importing botocore.

    <directory>/AWS_ACCESS_KEY_ID
    <directory>/AWS_SECRET_ACCESS_KEY
    <directory>/AWS_SESSION_TOKEN      only of keys that end by themselves
"""

import logging
import os
import threading
from pathlib import Path

import boto3
from botocore.credentials import (
    CredentialProvider,
    CredentialResolver,
    Credentials,
    ReadOnlyCredentials,
)
from botocore.session import get_session

from moorage_state.file_marks import Marks, marks
from moorage_state.mounted_secrets import MountedSecret, say

__all__ = ["MountedKeys", "session_with"]

_log = logging.getLogger(__name__)
_NAMES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_NEEDED = 2
_MOST_BYTES = 16 << 10
_ATTEMPTS = 3


class MountedKeys(Credentials):  # type: ignore[misc]  # botocore has no types
    """What botocore signs with: the keys as the files have them now. Safe for threads.

    Files that will not do are passed over, with a word, while the keys before are known.
    """

    def __init__(self, directory: Path, seen: Marks, keys: ReadOnlyCredentials) -> None:
        super().__init__(keys.access_key, keys.secret_key, keys.token, method=_Provider.METHOD)
        self._directory = directory
        self._files = [directory / name for name in _NAMES]
        self._lock = threading.Lock()
        self._seen = seen
        self._passed_over = seen
        self._keys = keys

    @classmethod
    def found(cls, directory: Path) -> "MountedKeys | None":
        """Those in a directory; None if they are not there, or not whole."""
        seen = marks(directory / name for name in _NAMES)
        keys = _read(directory)
        return None if keys is None else cls(directory, seen, keys)

    def get_frozen_credentials(self) -> ReadOnlyCredentials:
        """See `Credentials.get_frozen_credentials`; called for each request."""
        with self._lock:
            seen = marks(self._files)
            refused = seen != self._seen and not self._take_up(seen)
            say("store_keys", MountedSecret(refused))
            return self._keys

    def _take_up(self, seen: Marks) -> bool:
        """Use what is there by now; say whether it will do."""
        keys = _read(self._directory)
        if keys is None:
            # They are read again with the next request: a file may have failed to be read but once.
            if seen != self._passed_over:
                _log.warning(
                    "keys of the store not taken up, the ones before are used: directory=%s; write "
                    "the Secret's values anew",
                    self._directory,
                )
            self._passed_over = seen
            return False
        self._seen = seen
        if keys != self._keys:
            self._keys = keys
            self.access_key, self.secret_key, self.token = keys[:3]
            _log.info("keys of the store taken up: directory=%s", self._directory)
        return True


class _Provider(CredentialProvider):  # type: ignore[misc]  # botocore has no types
    METHOD = "moorage-files"

    def __init__(self, keys: MountedKeys) -> None:
        super().__init__()
        self._keys = keys

    def load(self) -> MountedKeys:
        return self._keys


def session_with(directory: Path) -> "boto3.session.Session | None":
    """A session that signs with the keys in a directory; None if there are none."""
    keys = MountedKeys.found(directory)
    if keys is None:
        return None
    inner = get_session()
    inner.register_component("credential_provider", CredentialResolver([_Provider(keys)]))
    return boto3.session.Session(botocore_session=inner)


def _read(directory: Path) -> ReadOnlyCredentials | None:
    """Keys that were put there together; None if there are none.

    The kubelet writes all of them into a folder and lets `..data` lead there; the one before goes.
    """
    for _ in range(_ATTEMPTS):
        folder = Path(os.path.realpath(directory / "..data"))
        values = [_value((folder if folder.is_dir() else directory) / name) for name in _NAMES]
        if all(values[:_NEEDED]):
            return ReadOnlyCredentials(values[0], values[1], values[2] or None)
    return None


def _value(path: Path) -> str:
    """Empty if it is not there, or no key."""
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
