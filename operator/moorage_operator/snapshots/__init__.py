"""StatefulSparkSnapshots: what is decided about one, which ones a job asks for, which may go.

Pure functions from worlds to plans. Called by the reconcile loop (`decide_snapshot`) and by the
job's own decisions (`wanted`). Must not know the API server, a driver's HTTP or a store: what is to
be done there are effects, and errands.
"""

from moorage_operator.snapshots.access import access_of, errand_refs
from moorage_operator.snapshots.decide import decide_snapshot
from moorage_operator.snapshots.naming import (
    TRIGGER_ANNOTATION,
    TRIGGER_LABEL,
    object_name,
    request_id,
    savepoint_path,
)
from moorage_operator.snapshots.retention import victims
from moorage_operator.snapshots.use import uses
from moorage_operator.snapshots.wanted import Wanted, stale, wanted

__all__ = [
    "TRIGGER_ANNOTATION",
    "TRIGGER_LABEL",
    "Wanted",
    "access_of",
    "decide_snapshot",
    "errand_refs",
    "object_name",
    "request_id",
    "savepoint_path",
    "stale",
    "uses",
    "victims",
    "wanted",
]
