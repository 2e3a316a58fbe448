"""What a job runs on: Spark, state servers, and where each subtask runs.

Decides the words between `run_job` and the two places a job can run in: this machine, and a
cluster of executors. Implemented by `moorage.driver.local` and `moorage.cluster.environment`.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from pyspark.sql import SparkSession

from moorage.driver.settings import JobSettings
from moorage.driver.types import RunOptions
from moorage.driver.views import ExecutorsView
from moorage.engine.placement import Placement
from moorage.engine.range_access import Servers
from moorage_state.errors import MoorageError


class NoExecutors(MoorageError):
    """Spark did not get a single executor in the time that is given to it."""

    code: ClassVar[str] = "no_executors"


class SparkNotStarted(MoorageError):
    """Spark did not start, for a reason that may pass: the API server was away, say."""

    code: ClassVar[str] = "spark_not_started"


class StoppedWaiting(Exception):
    """The job was told to stop while Spark started or executors were to come; nothing was begun."""


class RangesMove(Exception):
    """The run has ended with a checkpoint, so that ranges can move: begin another from it.

    Its text says why, for people.
    """


@dataclass(frozen=True, slots=True)
class Platform:
    """What an environment gives a job for as long as it runs.

    Attributes:
        state_dir: where state servers on this machine keep their databases; None for elsewhere.
    """

    spark: SparkSession
    servers: Servers
    token: str
    placement: Placement
    scratch: Path
    state_dir: Path | None = None


class JobEnvironment(Protocol):
    """A place that jobs run in; used for one job."""

    def open(
        self,
        settings: JobSettings,
        lineage: str,
        options: RunOptions,
        tell: Callable[[str], None],
    ) -> AbstractContextManager[Platform]:
        """Start Spark and state servers; all is gone when the context ends.

        Args:
            lineage: to which the state on local volumes must belong.

        Raises:
            UserError: Spark does not start, and only a person can change that.
            SparkNotStarted: it does not, and may the next time.
        """
        ...

    def scale(self, executors: int) -> None:
        """Ask for another number of executors, under the same parallelism; returns at once.

        Subtasks move with the next checkpoint after executors have come, or before they go.

        Raises:
            UserError: the number cannot be had here.
        """
        ...

    def executors(self) -> ExecutorsView:
        """How many there are; zeros before the start and where there are none."""
        ...
