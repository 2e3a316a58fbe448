"""What crosses between the parent and an engine's process: one JSON file each way."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.params import EngineName, Parameters, ShapeName
from benchmarks.window import Batch

__all__ = ["EngineRun", "Request"]


@dataclass(frozen=True, slots=True)
class Request:
    """One run of one engine on one shape.

    Attributes:
        source: the directory with the input files.
        work: an empty directory for everything that the engine writes.
    """

    engine: EngineName
    shape: ShapeName
    repeat: int
    source: Path
    work: Path
    params: Parameters

    def write(self, path: Path) -> None:
        """Write it to a file."""
        data = asdict(self) | {"source": str(self.source), "work": str(self.work)}
        path.write_text(json.dumps(data))

    @classmethod
    def read(cls, path: Path) -> "Request":
        """Read what `write` wrote."""
        data = json.loads(path.read_text())
        return cls(
            engine=data["engine"],
            shape=data["shape"],
            repeat=data["repeat"],
            source=Path(data["source"]),
            work=Path(data["work"]),
            params=Parameters.from_json(data["params"]),
        )


@dataclass(frozen=True, slots=True)
class EngineRun:
    """What came of a run.

    Attributes:
        steady: the batches that count; empty where the run failed.
        cpu_seconds: processor time within them, of all the engine's processes; None if unknown.
        batches: all batches that were committed, with the warm-up's.
        checked_rows: input rows whose answer was compared with the oracle's and found right.
        checked_keys: how many keys they have.
        checkpoints: checkpoints that were completed within the measured window; None where the
            engine has none beside its batches.
        seconds: of the whole process.
        load: the machine's load average before the run.
        error: why there is no figure; empty if there is one.
    """

    engine: EngineName
    shape: ShapeName
    repeat: int
    steady: tuple[Batch, ...] = ()
    cpu_seconds: float | None = None
    batches: int = 0
    checked_rows: int = 0
    checked_keys: int = 0
    checkpoints: int | None = None
    seconds: float = 0.0
    load: float = 0.0
    error: str = ""
    versions: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """A plain dict."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "EngineRun":
        """The inverse of `to_json`."""
        steady = tuple(Batch(**batch) for batch in data["steady"])
        return cls(**{**data, "steady": steady})
