"""The record of published files by checkpoint: `_moorage_log/<lineage>/` beside the output.

    <checkpoint id, 20 digits>.json           {"format":1,"checkpoint":7,"files":[...]}
    <newest id, 20 digits>.compact.json       {"format":1,"checkpoints":{"1":[...],"2":[...]}}

What a file is here (a name, or an object with name and size) is the business of the sink. Readers
take the union of all records, so compacting may be cut short anywhere. It puts records together
with those before them that are not larger than they are: a record is written again only as often as
the logarithm of their number says, and so many files hold all of them.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moorage.api.sinks import SinkRetire
from moorage_state.errors import CorruptState
from moorage_state.formats import read_json, refuse_unknown, require_known_format

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
    return {
        i
        for i in records
        if i > point.checkpoint_id or any(i in output.history for output in point.live)
    }


def record_name(checkpoint_id: int) -> str:
    """The name of a checkpoint's record."""
    return f"{checkpoint_id:020d}.json"


def recorded(names: Collection[str], checkpoint_id: int) -> bool:
    """Whether there may be a record of a checkpoint: its own, or one of later ones together."""
    numbers = ((int(m[1]), m[2]) for n in names if (m := _NAME.fullmatch(n)))
    return any(i == checkpoint_id or (many and i > checkpoint_id) for i, many in numbers)


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


def sweep_is_due(before: int, checkpoint_id: int, every: int) -> bool:
    """Whether to look at all that there is, which costs as much as there is.

    At ever larger distances, so that on average it costs a checkpoint the same for ever.

    Args:
        before: the checkpoint at which this was asked last.
        every: so many checkpoints lie between two looks at first.
    """
    step = max(every, 1 << max(checkpoint_id.bit_length() - 5, 0))
    return before // step < checkpoint_id // step


def together(sizes: Mapping[str, int]) -> list[str]:
    """The records that it is time to put together; none while there are few of one checkpoint.

    Args:
        sizes: by name, the bytes of all files beside the output; others are passed over.
    """
    named = [(m, size) for n, size in sizes.items() if (m := _NAME.fullmatch(n))]
    single = [(m, size) for m, size in named if not m[2]]
    if len(single) < COMPACT_AT:
        return []
    chosen = [m[0] for m, _ in single]
    newest, total = max(int(m[1]) for m, _ in single), sum(size for _, size in single)
    older = sorted(((int(m[1]), m[0], size) for m, size in named if m[2]), reverse=True)
    for number, name, size in older:
        # One of the same number would be overwritten: a compaction was cut short behind it.
        if size > total and number < newest:
            break
        chosen.append(name)
        newest, total = max(newest, number), total + size
    return sorted(chosen)


def compaction(
    names: Sequence[str], records: Records, live: Collection[int], gone: Collection[str] = ()
) -> Compaction | None:
    """What to write for these records, and what to delete then; None for none.

    Args:
        names: of the files that are put together.
        records: what they hold.
        live: the checkpoints that are in the history of anything that can be restored.
        gone: files, by name, that are nowhere any more.
    """
    if not names:
        return None
    newest = max(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))
    kept = {str(i): _without(records[i], gone) for i in sorted(records) if i in live}
    name = f"{newest:020d}.compact.json"
    obsolete = tuple(sorted(n for n in names if n != name))
    return Compaction(name, json.dumps({"format": _FORMAT, "checkpoints": kept}), obsolete)


def _without(files: list[Any], gone: Collection[str]) -> list[Any]:
    return [f for f in files if (f if isinstance(f, str) else f["file"]) not in gone]


def _parts(data: bytes, path: str) -> Mapping[int, list[Any]]:
    try:
        record = read_json(data)
        require_known_format("record of published output", record["format"], _FORMAT, path)
        refuse_unknown("record of published output", record, _FIELDS, path)
        if "checkpoints" in record:
            return {int(i): list(files) for i, files in record["checkpoints"].items()}
        return {int(record["checkpoint"]): list(record["files"])}
    except (ValueError, OverflowError, KeyError, TypeError, AttributeError) as error:
        raise CorruptState("a record of published output is damaged", path, _ADVICE) from error
