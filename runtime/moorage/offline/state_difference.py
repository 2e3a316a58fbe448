"""`snapshots diff --state`: which keys of a state differ between two snapshots.

A key is the same when all it has in the state is stored as the same bytes.
"""

import hashlib
from collections.abc import Iterator
from itertools import chain, groupby

import pyarrow as pa

from moorage.offline.difference import StateDifference
from moorage.offline.state_queries import whole_name
from moorage.state.reader import Selection, select, selected_rows
from moorage.state.snapshot_path import Found, unless_retired
from moorage_state.canonical import RowReader
from moorage_state.errors import UserError
from moorage_state.keylayout import prefix_of

_Keyed = tuple[bytes, bytes]
_END: _Keyed = (b"", b"")


def compare(before: Found, after: Found, name: str) -> StateDifference:
    """Compare one state, `UID/STATE`, by reading all of it on both sides.

    Raises:
        UserError: one side does not have the state, or has it with other types; or its checkpoint
            was retired meanwhile.
    """
    uid, state = whole_name(before, name)
    whole_name(after, name)
    sides = select(before.snapshot, uid, state), select(after.snapshot, uid, state)
    _check_comparable(*sides, name)
    added = removed = changed = same = 0
    # Side by side in the order of stored keys: memory does not grow with the state.
    one, other = (_digests(*both) for both in zip((before, after), sides, strict=True))
    left, right = next(one, _END), next(other, _END)
    while left is not _END or right is not _END:
        if right is _END or (left is not _END and left[0] < right[0]):
            removed += 1
            left = next(one, _END)
        elif left is _END or right[0] < left[0]:
            added += 1
            right = next(other, _END)
        else:
            changed += left[1] != right[1]
            same += left[1] == right[1]
            left, right = next(one, _END), next(other, _END)
    return StateDifference(uid, state, added, removed, changed, same)


def _check_comparable(one: Selection, other: Selection, name: str) -> None:
    facts = ["kind", "type", "key_type", "namespace_types", "key_types"]
    facts += ["max_parallelism", "key_hash"]
    for fact in facts:
        left, right = getattr(one.meta, fact), getattr(other.meta, fact)
        if left != right:
            raise UserError(
                f"keys of a state that changed its {fact} cannot be compared: state={name} "
                f"before={left} after={right}; leave --state out, the rest shows what changed"
            )


def _digests(found: Found, side: Selection) -> Iterator[_Keyed]:
    """What stands for each key and what it has, in the order of stored keys."""
    entries_of = (_split(side, selected_rows(side, handle)) for handle in side.handles)
    grouped = groupby(chain.from_iterable(entries_of), key=lambda entry: entry[0])
    with unless_retired(found.store, found.checkpoint):
        for prefix, entries in grouped:
            digest = hashlib.sha256()
            for _, rest, value in entries:
                for part in (rest, value):
                    digest.update(len(part).to_bytes(8, "big") + part)
            yield prefix, digest.digest()


def _split(
    side: Selection, batches: Iterator[pa.RecordBatch]
) -> Iterator[tuple[bytes, bytes, bytes]]:
    reader = RowReader(side.meta, side.snapshot.path)
    if side.meta.kind == "timers":
        for batch in batches:
            kinds, times = batch.column("kind").to_pylist(), batch.column("time").to_pylist()
            for prefix, kind, time in zip(reader.prefixes(batch), kinds, times, strict=True):
                yield prefix, b"", f"{kind} {time}".encode()
        return
    for keys, values in reader.entries(batches, indexed=False):
        for key, value in zip(keys, values, strict=True):
            prefix = prefix_of(key)
            yield prefix, key[len(prefix) :], value
