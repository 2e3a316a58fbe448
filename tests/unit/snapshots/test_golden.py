"""The bytes on disk do not change by accident.

To change a layout, raise its number, go on reading the old one, and add a file; none is ever
changed.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

from moorage_state.errors import NewerFormat
from moorage_state.server.databases import owner_of
from moorage_state.snapshots import (
    Checkpoint,
    Entry,
    Fence,
    Finished,
    Forgotten,
    Manifest,
    Owner,
    Record,
    Released,
    Rescaled,
    Retire,
    Run,
    Savepoint,
    encode_manifest,
)
from moorage_state.snapshots.entries import (
    Compacted,
    Moved,
    Past,
    decode_record,
    encode_record,
)
from moorage_state.snapshots.manifest import decode_manifest

GOLDEN = Path(__file__).parent / "golden"
AT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
ENTRIES: list[Entry] = [
    Owner("prod", "team-é", "flights", "uid-1", "lineage-1"),
    Fence(1, "driver-0"),
    Run(1, 0),
    Checkpoint(1, 0, 1, "chk-1/MANIFEST", "sha256:" + "0" * 64, 12, AT),
    Run(1, 1, "chk-1", explicit=True, restore_nonce=3, order_id="redeploy-4"),
    Savepoint(1, 1, 2, "s3://bucket/sp/before", "sha256:" + "1" * 64, 13, AT),
    Retire(1, 1),
    Released(1, "deleted with retain"),
]

NEVER_WRITTEN = 6
"""The line of the golden file whose kind was reserved."""


def golden(name: str, made: bytes) -> bytes:
    path = GOLDEN / name
    if not path.exists():
        path.write_bytes(made)
        raise AssertionError(f"wrote {path}; look at it and run again")
    return path.read_bytes()


def test_log_entries_are_written_and_read_as_in_the_golden_file() -> None:
    numbers = [seq for seq in range(1, len(ENTRIES) + 2) if seq != NEVER_WRITTEN]
    pairs = zip(numbers, ENTRIES, strict=True)
    records = [Record(seq, f"attempt-{seq}", AT, entry) for seq, entry in pairs]
    made = [encode_record(record) for record in records]
    lines = (GOLDEN / "log-entries-v1.jsonl").read_bytes().splitlines(keepends=True)
    kept = [line for seq, line in enumerate(lines, 1) if seq != NEVER_WRITTEN]
    assert made == kept
    assert [decode_record(line, "golden") for line in kept] == records


def test_an_entry_of_a_finished_job_is_written_and_read_as_in_the_golden_file() -> None:
    record = Record(1, "attempt-1", AT, Finished(1))
    data = golden("log-finished-v1.jsonl", encode_record(record))
    assert encode_record(record) == data
    assert decode_record(data, "golden") == record


def test_a_forgotten_savepoint_is_written_and_read_as_in_the_golden_file() -> None:
    past = Past(((7, 3, ((4, 6),)),), (7,))
    made: list[Entry] = [Forgotten(2, 7), Compacted(2, 0, 0, past, ())]
    records = [Record(seq, f"attempt-{seq}", AT, entry) for seq, entry in enumerate(made, 1)]
    data = golden("log-forgotten-v1.jsonl", b"".join(map(encode_record, records)))
    assert data == b"".join(map(encode_record, records))
    lines = data.splitlines(keepends=True)
    assert [decode_record(line, "golden") for line in lines] == records


def test_a_rescale_is_written_and_read_as_in_the_golden_file() -> None:
    record = Record(1, "attempt-1", AT, Rescaled(3, 2, 7, 4, 2))
    data = golden("log-rescaled-v1.jsonl", encode_record(record))
    assert encode_record(record) == data
    assert decode_record(data, "golden") == record


def test_a_log_that_begins_anew_is_written_and_read_as_in_the_golden_files() -> None:
    numbered = zip(range(1, 9), ENTRIES, strict=True)
    kept = tuple(Record(seq, f"attempt-{seq}", AT, entry) for seq, entry in numbered)
    past = Past(((900, 870, ((871, 880), (882, 899))), (901, 0, ())))
    entry = Compacted(3, 4100, 4100, past, kept)
    records = [Record(8196, "attempt-9", AT, entry), Record(8196, "attempt-10", AT, Moved(3, 4100))]
    made = b"".join(map(encode_record, records))
    data = golden("log-compacted-v1.jsonl", made)
    assert data == made
    lines = data.splitlines(keepends=True)
    assert [decode_record(line, "golden") for line in lines] == records


def test_a_kind_that_was_reserved_and_that_nobody_wrote_is_refused_by_name() -> None:
    line = (GOLDEN / "log-entries-v1.jsonl").read_bytes().splitlines(keepends=True)[5]
    with pytest.raises(NewerFormat, match="kind=epoch"):
        decode_record(line, "golden")


def _with_inline_and_packed_files(manifest: Manifest) -> Manifest:
    """The first range has an inline file, and another one in the middle of a pack."""
    subtasks = manifest.operators["counts"].subtasks
    current, table, *others = subtasks[0].files
    changed = [
        replace(current, key="", inline=b"MANIFEST-000005\n\x00\xff", size=18),
        replace(table, key=f"shared/pack-{'0' * 31}1-0-4096", offset=1024),
        *others,
    ]
    first = replace(subtasks[0], files=changed, bytes_total=sum(file.size for file in changed))
    operator = replace(manifest.operators["counts"], subtasks=[first, subtasks[1]])
    return replace(manifest, operators={"counts": operator})


def test_a_manifest_is_written_and_read_as_in_the_golden_file(
    new_manifest: Callable[..., Manifest],
) -> None:
    manifest = _with_inline_and_packed_files(new_manifest(7, ("a", "b"), created_at=AT))
    data = golden("MANIFEST-v1", encode_manifest(manifest))
    assert encode_manifest(manifest) == data
    assert decode_manifest(data, "golden") == manifest


def test_a_manifest_of_a_named_backend_is_written_and_read_as_in_the_golden_file(
    new_manifest: Callable[..., Manifest],
) -> None:
    """Of one that not every release has; the built-in ones are told apart by names of files."""
    manifest = new_manifest(7, ("a", "b"), created_at=AT)
    counts = manifest.operators["counts"]
    named = [replace(handle, backend="sqlite") for handle in counts.subtasks]
    manifest = replace(manifest, operators={"counts": replace(counts, subtasks=named)})
    data = golden("MANIFEST-v1-named-backend", encode_manifest(manifest))
    assert encode_manifest(manifest) == data
    assert decode_manifest(data, "golden") == manifest
    old = decode_manifest((GOLDEN / "MANIFEST-v1").read_bytes(), "golden")
    assert [owner_of(handle) for handle in (*manifest.handles, *old.handles)] == [
        "sqlite",
        "sqlite",
        "rocksdb",
        "rocksdb",
    ]
