"""What a driver has in its hands while its process lives, across the runs of the stream."""

import threading
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession

from moorage.api.graph import JobGraph
from moorage.driver.environment import JobEnvironment
from moorage.driver.housekeeping import Housekeeper
from moorage.driver.output import OutputKeeper
from moorage.driver.reporter import Reporter
from moorage.driver.requests import Requests
from moorage.driver.samples import OutputSamples
from moorage.driver.settings import JobSettings
from moorage.driver.standby import Standby
from moorage.engine.fleet import RangeFleet
from moorage.engine.kv_states import KvStateLocationRegistry
from moorage.engine.plan import EpochPlanner
from moorage_state.coordinator import CompletedCheckpointStore
from moorage_state.snapshots import CheckpointStore, LogWriter


@dataclass(frozen=True, slots=True)
class DriverContext:
    """What lasts for the whole process, across runs.

    Attributes:
        directories: on this machine, without which nothing works; scratch is one.
        standby: nothing comes out of its runs; None for a driver that has the lineage.
        samples: of its output, for whoever compares it with another version's.
    """

    settings: JobSettings
    spark: SparkSession
    graph: JobGraph
    planner: EpochPlanner
    fleet: RangeFleet
    kv_states: KvStateLocationRegistry
    token: str
    writer: LogWriter
    store: CheckpointStore
    scratch: Path
    reporter: Reporter
    stop: threading.Event
    requests: Requests
    environment: JobEnvironment
    output: OutputKeeper
    completed: CompletedCheckpointStore
    directories: tuple[Path, ...]
    housekeeper: Housekeeper
    standby: Standby | None = None
    samples: OutputSamples = field(default_factory=OutputSamples)

    @property
    def input_uids(self) -> list[str]:
        """Inputs in the order of Spark's sources."""
        return [node.uid for node in self.graph.inputs]
