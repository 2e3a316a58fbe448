"""What effects are carried out on: the object of a pass, as it was read and decided about."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from moorage_api import JobSpec
from moorage_operator.ports import JobRefs, Kind, Object
from moorage_operator.world import Meta, Revision

__all__ = ["ActionFailed", "Scene"]


class ActionFailed(Exception):
    """An effect could not be carried out now. The pass ends; the next one decides anew.

    Attributes:
        retry_after: seconds, where somebody said so.
    """

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class Scene:
    """One object in the middle of a pass.

    Attributes:
        body: as it is after the status was written.
        job: the job's metadata: of the object itself, or of the snapshot's job; None if that is
            gone.
        spec: the job's newest spec, if it can be read.
        refs: what reaching the store takes; None where nothing is known of it.
    """

    kind: Kind
    body: Object
    meta: Meta
    job: Meta | None
    spec: JobSpec | None = None
    refs: JobRefs | None = None
    revisions: Mapping[str, Revision] = field(default_factory=dict)
