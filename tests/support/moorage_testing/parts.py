"""What servers wrote of a checkpoint, with its files, which only parts list."""

from collections.abc import Mapping, Sequence

from msgspec.structs import asdict

from moorage_state.server import WrittenPart
from moorage_state.snapshots import (
    Manifest,
    OperatorParts,
    PartEntry,
    RangeEntry,
    RangeHandle,
    RangeInPart,
    Root,
    part_key,
)
from moorage_state.snapshots.parts import (
    Part,
    encode_part,
    inherited,
    part_entry,
    part_ref,
    read_part,
    references,
)
from moorage_state.stores import ObjectStore, open_store

__all__ = ["handles_in", "handles_of", "rooted"]


def handles_of(url: str, written: WrittenPart) -> list[RangeHandle]:
    """The handles in the part that one server wrote, in the order of the requests."""
    return read_part(open_store(url), written.part.ref).handles


def handles_in(
    url: str, stored: Mapping[str, Sequence[RangeHandle | RangeInPart]]
) -> dict[str, list[RangeHandle]]:
    """By operator uid, the handles of what a fleet has uploaded."""
    return {uid: [_handle(url, one) for one in some] for uid, some in stored.items()}


def _handle(url: str, one: RangeHandle | RangeInPart) -> RangeHandle:
    if isinstance(one, RangeHandle):
        return one
    found = read_part(open_store(url), one.part).handles
    return next(h for h in found if (h.uid, h.start) == (one.stored_uid, one.start))


def rooted(
    manifest: Manifest,
    store: ObjectStore,
    servers: Sequence[Sequence[int]] | None = None,
    base: Root | None = None,
) -> Root:
    """The same checkpoint as servers write it, each the ranges of these numbers.

    Args:
        base: what it builds on, whose parts lie in the store.
    """
    handles = manifest.handles
    entries: list[PartEntry] = []
    place: dict[int, int] = {}
    for number, mine in enumerate(servers or [range(len(handles))]):
        some = [handles[at] for at in mine]
        ranges = [(handle.uid, handle.start, handle.end) for handle in some]
        change = references(some, inherited(ranges, _parts_for(ranges, base, store), 99))
        part = Part(some, change.common)
        key = part_key(manifest.checkpoint_id, f"f{manifest.fence}r{manifest.run}", f"{number}")
        data = encode_part(part)
        store.put(key, data)
        entries.append(part_entry(part_ref(key, data), some, change))
        place.update((at, number) for at in mine)
    at = {(h.uid, h.start): place[n] for n, h in enumerate(handles)}
    operators = {
        uid: OperatorParts(
            parallelism=operator.parallelism,
            key_types=operator.key_types,
            states=operator.states,
            subtasks=[
                RangeEntry(
                    start=h.start, end=h.end, bytes_total=h.bytes_total, part=at[uid, h.start]
                )
                for h in operator.subtasks
            ],
            operator_states=operator.operator_states,
            owners=operator.owners,
            backend="rocksdb",
        )
        for uid, operator in manifest.operators.items()
    }
    fields = asdict(manifest)
    del fields["format"], fields["operators"], fields["parts"]
    listed = base is None or set(base.operators) <= set(operators)
    base_id = base.checkpoint_id if base else 0
    return Root(**fields, operators=operators, parts=entries, base_id=base_id, base_listed=listed)


def _parts_for(
    ranges: Sequence[tuple[str, int, int]], base: Root | None, store: ObjectStore
) -> list[Part]:
    found = {
        one.part
        for uid, start, end in ranges
        if base is not None and uid in base.operators
        for one in base.ranges(uid)
        if one.start <= end and one.end >= start
    }
    return [read_part(store, ref) for ref in sorted(found, key=lambda ref: ref.key)]
