"""A checkpoint directory as a whole: its log, and how each checkpoint stands.

Decides what a checkpoint is at this moment: the restore point, retained, retired with objects that
are still there, or unfinished. Called by `ls`, `verify` and `gc`. Reads the log and listings.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from moorage_state.errors import UserError
from moorage_state.snapshots import (
    Checkpoint,
    Entry,
    LineageLog,
    Record,
    Retire,
    checkpoint_id_of,
    restore_point,
    retained,
)
from moorage_state.stores import ObjectStore

__all__ = ["Lineage", "Standing", "read_lineage", "standings"]

Standing = Literal["restore point", "retained", "retired", "unfinished", "gone"]
"""`retired`: its objects are still there. `unfinished`: objects without an entry in the log, of a
checkpoint that is under way or was given up. `gone`: retired, and nothing is left of it."""


@dataclass(frozen=True, slots=True)
class Lineage:
    """What a checkpoint directory says of itself.

    Attributes:
        store: the directory.
        records: the log.
        standings: by checkpoint id, how each stands.
        leftover_bytes: by checkpoint id, the bytes under `chk-<id>/`.
        warning: why there is no restore point although there were checkpoints; or empty.
    """

    store: ObjectStore
    records: Sequence[Record]
    standings: Mapping[int, Standing]
    leftover_bytes: Mapping[int, int]
    warning: str = ""

    @property
    def entries(self) -> list[Entry]:
        """The log's entries, in order."""
        return [record.entry for record in self.records]


def read_lineage(store: ObjectStore) -> Lineage:
    """Read the log and list what lies beside it.

    Raises:
        CorruptState, UserError: see `LineageLog.read`.
        StoreUnavailable: the store does not answer.
    """
    present: dict[int, int] = {}
    for info in store.list("chk-"):
        found = checkpoint_id_of(info.key.partition("/")[0])
        if found is not None:
            present[found] = present.get(found, 0) + info.size
    # Read after the listing: what completed in between is known, and not called unfinished.
    records = LineageLog.open(store).read_records()
    entries = [record.entry for record in records]
    restore_id, warning = _restore_id(entries)
    return Lineage(store, records, standings(entries, restore_id, present), present, warning)


def standings(
    entries: Sequence[Entry], restore_id: int | None, present: Iterable[int]
) -> dict[int, Standing]:
    """How each checkpoint stands, by id in order.

    Args:
        restore_id: the restore point, where it is a checkpoint of the lineage.
        present: the ids under which there are objects.
    """
    live = {checkpoint.checkpoint_id for checkpoint in retained(entries)}
    present = set(present)
    known = {e.checkpoint_id for e in entries if isinstance(e, Checkpoint | Retire)}

    def standing(checkpoint_id: int) -> Standing:
        if checkpoint_id in live:
            return "restore point" if checkpoint_id == restore_id else "retained"
        if checkpoint_id not in known:
            return "unfinished"
        return "retired" if checkpoint_id in present else "gone"

    return {one: standing(one) for one in sorted(known | present)}


def _restore_id(entries: Sequence[Entry]) -> tuple[int | None, str]:
    try:
        point = restore_point(entries)
    except UserError as error:
        return None, str(error)
    if point is None or point.checkpoint is None:
        return None, ""
    return point.checkpoint.checkpoint_id, ""
