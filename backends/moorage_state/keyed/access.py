"""What the keyed state store asks of a range: batched reads at one version, and staged writes."""

from typing import Protocol

from moorage_state.database import Scan
from moorage_state.keylayout import EVENT_TIMERS


class RangeAccess(Protocol):
    """One range at the version an epoch reads, bound to one attempt that stages its writes."""

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """The values of `keys`; None where there is none. Keys in order are read fastest."""

    def scan_many(self, prefixes: list[bytes], limit_entries: int, limit_bytes: int) -> list[Scan]:
        """Entries under each prefix, at most `limit_entries` a prefix and `limit_bytes` in all."""

    def scan_from(self, prefix: bytes, after: bytes, limit: int) -> Scan:
        """Up to `limit` entries under `prefix` after `after`: fewer large ones, at least one."""

    def due_timers(
        self, up_to_ms: int, limit: int, after: bytes, kind: int = EVENT_TIMERS
    ) -> list[bytes]:
        """Up to `limit` due entries beyond `after` of the index by time that `kind` names."""

    def stage(self, frame: bytes) -> None:
        """Send one frame of writes; nothing is visible before the epoch commits."""
