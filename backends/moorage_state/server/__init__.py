"""The state server: owns the databases of the key-group ranges leased to it.

Decides what a committed epoch is on this machine, and how a range comes back after a crash or a
rescale. Called by tasks and the driver through `StateApi`, in this process or over a socket. Must
not know Spark, manifests beyond their handles, or what state values mean.
"""

from moorage_state.server.group import ServerGroup as ServerGroup
from moorage_state.server.host import RangeHost as RangeHost
from moorage_state.server.operations import Lease as Lease
from moorage_state.server.operations import Prepared as Prepared
from moorage_state.server.operations import RangeApi as RangeApi
from moorage_state.server.operations import RangeSpec as RangeSpec
from moorage_state.server.operations import RestoreBase as RestoreBase
from moorage_state.server.operations import StateApi as StateApi
from moorage_state.server.operations import UploadLimits as UploadLimits
from moorage_state.server.operations import UploadRequest as UploadRequest
from moorage_state.server.operations import Version as Version
from moorage_state.server.operations import WrittenPart as WrittenPart
from moorage_state.server.operations import WrittenRange as WrittenRange
