"""Stand-ins for the API server: its semantics in memory, and an HTTP server that has them."""

from moorage_testing.kube.api import ApiStore
from moorage_testing.kube.faults import Call, CrashPoints, OperatorKilled
from moorage_testing.kube.memory import MemoryCluster
from moorage_testing.kube.refusals import ApiRefusal

__all__ = ["ApiRefusal", "ApiStore", "Call", "CrashPoints", "MemoryCluster", "OperatorKilled"]
