"""What this process makes of Secrets whose files change under way: what it uses, what it refused.

Said at each look by who follows the files (`server.tls`, `stores.s3.mounted_keys`) and goes on with
what it has; asked by the driver's metrics, so that somebody hears of it in time.
"""

from dataclasses import dataclass
from typing import Literal

__all__ = ["Kind", "MountedSecret", "mounted_secrets", "say"]

Kind = Literal["certificate", "store_keys"]


@dataclass(frozen=True, slots=True)
class MountedSecret:
    """A Secret as it was at the last look.

    Attributes:
        refused: the files that are there will not do, and what was there before is used.
        ends: when what is used ceases to be valid, in seconds since 1970; None if it does not say.
    """

    refused: bool = False
    ends: float | None = None


_looked_at: dict[Kind, MountedSecret] = {}


def say(kind: Kind, secret: MountedSecret) -> None:
    """Somebody has looked; for any thread."""
    _looked_at[kind] = secret


def mounted_secrets() -> dict[Kind, MountedSecret]:
    """Those that this process follows, once somebody has looked."""
    return dict(_looked_at)
