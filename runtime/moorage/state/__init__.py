"""State outside of a job: read it, repair it, write it. What Flink calls the State Processor API.

    import moorage.state

    table = moorage.state.read("s3://bucket/flights/sp-1", "delays", "mean")      # Arrow
    frame = moorage.state.read("s3://bucket/flights/chk-41", "delays", "mean", spark=spark)
    moorage.state.write_savepoint("s3://bucket/flights/sp-2", {"delays": tables}, base=...)

Works on an object store alone, with the job running or not: a checkpoint or a savepoint never
changes. Importing this starts no Spark; docs/state-reader.md has whole examples.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moorage.state.operator_files import OperatorTables as OperatorTables
    from moorage.state.reader import StateInfo as StateInfo
    from moorage.state.reader import list_states as list_states
    from moorage.state.reader import read as read
    from moorage.state.snapshot_path import Snapshot as Snapshot
    from moorage.state.snapshot_path import locate as locate
    from moorage.state.spark_source import register as register
    from moorage.state.writer import write_savepoint as write_savepoint

_HOMES = {
    "moorage.state.snapshot_path": ("Snapshot", "locate"),
    "moorage.state.reader": ("StateInfo", "list_states", "read"),
    "moorage.state.spark_source": ("register",),
    "moorage.state.operator_files": ("OperatorTables",),
    "moorage.state.writer": ("write_savepoint",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [*_HOME_OF]  # noqa: PLE0604  names, which are strings


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)
