"""The state server: owns the databases of the key-group ranges leased to it.

Decides what a committed epoch is on this machine, and how a range comes back after a crash or a
rescale. Called by tasks and the driver through `StateApi`, in this process or over a socket. Must
not know Spark, manifests beyond their handles, or what state values mean.
"""

from moorage_state.database import Scan
from moorage_state.server.client import StateClient
from moorage_state.server.group import ServerGroup
from moorage_state.server.host import RangeHost
from moorage_state.server.operations import (
    Lease,
    OpenResult,
    Prepared,
    RangeApi,
    RangeSpec,
    RestoreBase,
    StateApi,
    Uploaded,
    UploadLimits,
    UploadRequest,
    Version,
)

__all__ = [
    "Lease",
    "OpenResult",
    "Prepared",
    "RangeApi",
    "RangeHost",
    "RangeSpec",
    "RestoreBase",
    "Scan",
    "ServerGroup",
    "StateApi",
    "StateClient",
    "UploadLimits",
    "UploadRequest",
    "Uploaded",
    "Version",
]
