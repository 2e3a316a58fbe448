"""A range without a server: a dict that takes staged frames as the state server does."""

from moorage_state.database import Scan
from moorage_state.deltas import decode_frame
from moorage_state.keylayout import EVENT_TIMERS, timer_parts

__all__ = ["FakeRange"]


class FakeRange:
    """Implements `RangeAccess` on a dict; what is staged counts from `commit` on."""

    def __init__(self) -> None:
        self.entries: dict[bytes, bytes] = {}
        self.staged: list[bytes] = []
        self.requests = 0
        self.seconds = 0.0

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        assert keys
        self.requests += 1
        return [self.entries.get(key) for key in keys]

    def scan_many(self, prefixes: list[bytes], limit_entries: int, limit_bytes: int) -> list[Scan]:
        self.requests += 1
        scans = []
        left = limit_bytes
        for prefix in prefixes:
            if left <= 0:
                scans.append(Scan([], [], complete=False))
                continue
            scan = self._take(prefix, b"", limit_entries, left)
            left -= sum(map(len, scan.keys)) + sum(map(len, scan.values))
            scans.append(scan)
        return scans

    def scan_from(self, prefix: bytes, after: bytes, limit: int) -> Scan:
        self.requests += 1
        return self._take(prefix, after, limit, 1 << 60)

    def due_timers(
        self, up_to_ms: int, limit: int, after: bytes, kind: int = EVENT_TIMERS
    ) -> list[bytes]:
        self.requests += 1
        index = [k for k in sorted(self.entries) if k[2] == kind and k > after]
        return [k for k in index if timer_parts(k)[1] <= up_to_ms][:limit]

    def stage(self, frame: bytes) -> None:
        self.staged.append(frame)

    def commit(self) -> None:
        """Apply the staged frames: in each, ranges first, then puts and deletes in order."""
        for payload in self.staged:
            frame = decode_frame(payload)
            for start, end in frame.ranges:
                for key in [k for k in self.entries if start <= k < end]:
                    del self.entries[key]
            for key, value in zip(frame.keys, frame.values, strict=True):
                if value is None:
                    self.entries.pop(key, None)
                else:
                    self.entries[key] = value
        self.staged = []

    def abort(self) -> None:
        self.staged = []

    def _take(self, prefix: bytes, after: bytes, entries: int, size: int) -> Scan:
        """Like the server's cursor: at least one entry, then up to the limits."""
        keys: list[bytes] = []
        values: list[bytes] = []
        taken = 0
        for key in sorted(self.entries):
            if not key.startswith(prefix) or (after and key <= after):
                continue
            if len(keys) >= entries or taken >= size:
                return Scan(keys, values, complete=False)
            keys.append(key)
            values.append(self.entries[key])
            taken += len(key) + len(values[-1])
        return Scan(keys, values, complete=True)
