"""What a pass tells to whoever measures; the default listens to nothing."""

from typing import TYPE_CHECKING

from moorage_api.status import JobStatus
from moorage_operator.ports import Object

if TYPE_CHECKING:
    from moorage_operator.loop import Ref

__all__ = ["Telemetry"]


class Telemetry:
    """Listens to passes; all methods are quick and never raise."""

    def pass_ended(self, ref: "Ref", seconds: float, outcome: str) -> None:
        """A pass took so long; outcome is changed, unchanged, failed, conflict or gone."""

    def job_seen(self, body: Object, status: JobStatus) -> None:
        """This is how a job is now."""

    def snapshot_seen(self, body: Object, state: str) -> None:
        """This is how a snapshot is now."""

    def gone(self, ref: "Ref") -> None:
        """There is no such object any more."""

    def moved(self, ref: "Ref", before: str, after: str) -> None:
        """A phase or state was written that is another than before."""

    def conflicted(self, ref: "Ref") -> None:
        """Somebody else wrote a status."""
