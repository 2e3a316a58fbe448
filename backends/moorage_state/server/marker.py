"""The version marker: which version a database holds, written in the batch that brings it there.

The marker names the run too, because a digest means something only within the run that made it: a
range that its own run opens again continues the chain of deltas, another run begins a new one.
Keys that begin with `ff ff` are the server's own: no key group has this number.
"""

from typing import NamedTuple

import msgspec

from moorage_state.database import RangeView
from moorage_state.errors import CorruptState
from moorage_state.server.api import Version

__all__ = ["METADATA", "Marker", "read_marker", "write_marker"]

METADATA = b"\xff\xff"
"""The least key of the server's own entries; all keys of state are less."""

_KEY = METADATA + b"version"


class Marker(NamedTuple):
    """The version that a database holds, and the run in which it got there."""

    epoch: int
    digest: str
    run: str

    @property
    def version(self) -> Version:
        """The version alone."""
        return Version(self.epoch, self.digest)


_decode = msgspec.msgpack.Decoder(Marker).decode


def write_marker(version: Version, run: str) -> tuple[bytes, bytes]:
    """The entry that records `version` of `run`."""
    return _KEY, msgspec.msgpack.encode(Marker(*version, run))


def read_marker(database: RangeView) -> Marker | None:
    """The marker in `database`, None when it never had one.

    Raises:
        CorruptState: the entry cannot be read.
    """
    raw = database.get(_KEY)
    try:
        return None if raw is None else _decode(raw)
    except msgspec.MsgspecError as error:
        raise CorruptState(
            f"the version marker cannot be read ({error})",
            str(database.path),
            "open the range again: it is rebuilt from its last checkpoint",
        ) from error
