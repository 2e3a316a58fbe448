"""How long state lives after it was last used, as a user declares it beside a descriptor.

Called by descriptors and the keyed state store. The names are Flink's. Time is processing time:
the time of the epoch, which is the same for all its rows and in every attempt of it.
"""

import datetime
from dataclasses import dataclass
from enum import Enum
from typing import Any

_MILLISECOND = datetime.timedelta(milliseconds=1)
_SWEEP_LIMIT = 100_000


class UpdateType(Enum):
    """What begins a state's time to live anew."""

    OnCreateAndWrite = "on-create-and-write"
    OnReadAndWrite = "on-read-and-write"


class StateVisibility(Enum):
    """Whether state whose time is over may still be read."""

    NeverReturnExpired = "never-return-expired"
    ReturnExpiredIfNotCleanedUp = "return-expired-if-not-cleaned-up"


@dataclass(frozen=True, slots=True)
class StateTtlConfig:
    """A time to live: of a value, of each element of a list, of each entry of a map.

    Attributes:
        ttl: how long state lives after it was last written (or read), at least a millisecond.
        update_type: whether a read begins the time anew, as a write does.
        visibility: whether what has expired may be read until it is cleaned up: once by key, as
            reading cleans up.
        cleanup_in_background: remove expired state of keys that do not come again. Without, only
            reads do.
        sweep_limit: how many expired values, elements or entries a subtask removes in one epoch.
        cleanup_in_full_snapshot: leave what has expired out of canonical savepoints. What is
            stored here stays.

    Raises:
        ValueError: for a time of less than a millisecond, or a limit of less than one entry.
        TypeError: for a value of another type than the attribute's.
    """

    ttl: datetime.timedelta
    update_type: UpdateType = UpdateType.OnCreateAndWrite
    visibility: StateVisibility = StateVisibility.NeverReturnExpired
    cleanup_in_background: bool = True
    sweep_limit: int = _SWEEP_LIMIT
    cleanup_in_full_snapshot: bool = False

    def __post_init__(self) -> None:
        _require("ttl", self.ttl, datetime.timedelta, "datetime.timedelta(days=7)")
        _require("update_type", self.update_type, UpdateType, "UpdateType.OnReadAndWrite")
        example = "StateVisibility.NeverReturnExpired"
        _require("visibility", self.visibility, StateVisibility, example)
        for name in ("cleanup_in_background", "cleanup_in_full_snapshot"):
            _require(name, getattr(self, name), bool, "True")
        _require("sweep_limit", self.sweep_limit, int, "100_000")
        if self.ttl < _MILLISECOND:
            raise ValueError(f"a time to live is at least a millisecond: ttl={self.ttl}")
        if self.sweep_limit < 1:
            raise ValueError(
                f"a sweep removes at least one entry: sweep_limit={self.sweep_limit}; "
                f"cleanup_in_background=False switches it off"
            )

    @property
    def ttl_ms(self) -> int:
        """The time to live in whole milliseconds."""
        return self.ttl // _MILLISECOND

    @property
    def updates_on_read(self) -> bool:
        """Whether a read begins the time anew."""
        return self.update_type is UpdateType.OnReadAndWrite

    @property
    def returns_expired(self) -> bool:
        """Whether what has expired may be read while it is there."""
        return self.visibility is StateVisibility.ReturnExpiredIfNotCleanedUp


def _require(field: str, given: Any, wanted: type, example: str) -> None:
    if not isinstance(given, wanted) or (isinstance(given, bool) and wanted is not bool):
        raise TypeError(
            f"a time to live is declared with values of another type: {field}={given!r:.100} of "
            f"type {type(given).__name__}; give for example {example}"
        )
