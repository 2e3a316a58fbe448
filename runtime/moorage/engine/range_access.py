"""A subtask's range as the keyed state store sees it: one version to read, one attempt to write.

Binds the state server's interface to what stays the same for one attempt of one subtask.
"""

from dataclasses import dataclass

from moorage_state.keyed.access import Scan
from moorage_state.server.api import StateApi, Version

__all__ = ["BoundRange", "LeasedRange"]


@dataclass(frozen=True, slots=True)
class LeasedRange:
    """A range under a run's lease: where it is served and the version an epoch reads."""

    uid: str
    start: int
    run: str
    address: str
    version: Version


class BoundRange:
    """The range of this subtask at the version this epoch reads, for this attempt's writes."""

    def __init__(self, client: StateApi, leased: LeasedRange, epoch: int, attempt: str) -> None:
        self._client = client
        self._range = (leased.uid, leased.start, leased.run)
        self._version = leased.version
        self._epoch = epoch
        self._attempt = attempt
        self._frames = 0

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """See `RangeAccess`."""
        return self._client.get_many(*self._range, self._version, keys)

    def scan_many(self, prefixes: list[bytes], limit_entries: int, limit_bytes: int) -> list[Scan]:
        """See `RangeAccess`."""
        scans = self._client.scan_many(
            *self._range, self._version, prefixes, limit_entries, limit_bytes
        )
        return [Scan(*scan) for scan in scans]

    def scan_from(self, prefix: bytes, after: bytes, limit: int) -> Scan:
        """See `RangeAccess`."""
        return Scan(*self._client.scan_from(*self._range, self._version, prefix, after, limit))

    def due_timers(self, up_to_ms: int, limit: int, after: bytes) -> list[bytes]:
        """See `RangeAccess`."""
        return self._client.due_timers(*self._range, self._version, up_to_ms, limit, after)

    def stage(self, frame: bytes) -> None:
        """See `RangeAccess`."""
        self._client.stage(*self._range, self._epoch, self._attempt, frame, self._frames)
        self._frames += 1

    def prepare(self) -> str:
        """Finish this attempt's delta; returns its digest. Nothing may be staged after it."""
        prepared = self._client.prepare(
            *self._range, self._epoch, self._attempt, self._version[1], self._frames
        )
        return prepared.digest
