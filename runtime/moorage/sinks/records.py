"""The record of published files by checkpoint: `_moorage_log/<lineage>/` beside the output.

    <checkpoint id, 20 digits>.json           {"format":1,"checkpoint":7,"files":[...]}
    <newest id, 20 digits>.compact.json       {"format":1,"checkpoints":{"1":[...],"2":[...]}}

What a file is here (a name, or an object with name and size) is the business of the sink. Readers
take the union of all records, so compacting may be cut short anywhere.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moorage.api.sinks import SinkRetire
from moorage_state.errors import CorruptState
from moorage_state.formats import refuse_unknown, require_known_format

Records = dict[int, list[Any]]
"""Published files by checkpoint."""

COMPACT_AT = 20
"""So many records of one checkpoint each are put into one."""

_FORMAT = 1
_FIELDS = ("format", "checkpoint", "checkpoints", "files")
_NAME = re.compile(r"(\d{20})(\.compact)?\.json")
_ADVICE = "put it back from a copy, or delete it: then nothing it lists is ever taken back"


@dataclass(frozen=True, slots=True)
class Compaction:
    """What to write, and what to delete when it is durable."""

    name: str
    data: str
    obsolete: tuple[str, ...]


def live_ids(point: SinkRetire, records: Records) -> set[int]:
    """The checkpoints whose records stay: of histories, and what a newer driver completed."""
    live = {i for output in point.live for i in output.history}
    return live.union(i for i in records if i > point.checkpoint_id)


def record_name(checkpoint_id: int) -> str:
    """The name of a checkpoint's record."""
    return f"{checkpoint_id:020d}.json"


def encode(checkpoint_id: int, files: Sequence[Any]) -> str:
    """The record of one checkpoint."""
    return json.dumps({"format": _FORMAT, "checkpoint": checkpoint_id, "files": list(files)})


def decode(records: Iterable[tuple[str, bytes]], where: str) -> Records:
    """The union of records, given as name and content; other names are passed over."""
    found: Records = {}
    for name, data in records:
        if _NAME.fullmatch(name):
            for checkpoint_id, files in _parts(data, f"{where}/{name}").items():
                known = found.setdefault(checkpoint_id, [])
                # A compaction that was cut short leaves a record and its copy: their union is
                # right.
                known.extend(file for file in files if file not in known)
    return found


def many(names: Collection[str]) -> bool:
    """Whether it is time to put records together."""
    return sum(1 for n in names if (m := _NAME.fullmatch(n)) and not m[2]) >= COMPACT_AT


def compaction(
    names: Collection[str], records: Records, live: Collection[int], gone: Collection[str] = ()
) -> Compaction | None:
    """What to do about these records; None while they are few.

    Args:
        names: of all record files.
        records: what they hold together.
        live: the checkpoints that are in the history of anything that can be restored.
        gone: files, by name, that are nowhere any more.
    """
    if not records or not many(names):
        return None
    newest = max(records)
    kept = {str(i): _without(records[i], gone) for i in sorted(records) if i in live}
    name = f"{newest:020d}.compact.json"
    obsolete = tuple(sorted(n for n in names if _NAME.fullmatch(n) and n != name))
    return Compaction(name, json.dumps({"format": _FORMAT, "checkpoints": kept}), obsolete)


def _without(files: list[Any], gone: Collection[str]) -> list[Any]:
    return [f for f in files if (f if isinstance(f, str) else f["file"]) not in gone]


def _parts(data: bytes, path: str) -> Mapping[int, list[Any]]:
    try:
        record = json.loads(data)
        require_known_format("record of published output", record["format"], _FORMAT, path)
        refuse_unknown("record of published output", record, _FIELDS, path)
        if "checkpoints" in record:
            return {int(i): list(files) for i, files in record["checkpoints"].items()}
        return {int(record["checkpoint"]): list(record["files"])}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptState("a record of published output is damaged", path, _ADVICE) from error
