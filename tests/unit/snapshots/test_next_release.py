"""What the next release may write, read by this one: one step back is refused by name, or right.

The golden files are as a later writer would make them: with names that this release does not know,
marked optional or not. None of them is ever changed; another idea of the future is another file.
"""

import hashlib
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from moorage_state.errors import CorruptState, Fenced, NewerFormat
from moorage_state.snapshots import (
    CheckpointStore,
    Fence,
    LineageLog,
    LogWriter,
    Manifest,
    Owner,
    Retire,
    Run,
    Unknown,
    encode_manifest,
    log_key,
    retained,
)
from moorage_state.snapshots.entries import Compacted, decode_record
from moorage_state.snapshots.manifest import decode_manifest
from moorage_state.stores import MemoryStore

GOLDEN = Path(__file__).parent / "golden"
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def line_of(seq: int, entry: dict[str, Any], **more: Any) -> bytes:
    """A log entry in the layout of today, with any fields."""
    body = {"moorage-log": 1, "seq": seq, "attempt": f"a{seq}", "at": "2026-01-02T03:04:05Z"}
    head = json.dumps(body | more | {"entry": entry}, separators=(",", ":")).encode()[:-1]
    return head + b',"sha256":"' + hashlib.sha256(head).hexdigest().encode() + b'"}\n'


def manifest_of(document: dict[str, Any]) -> bytes:
    body = json.dumps(document, indent=2).encode() + b"\n"
    return (
        f"MOORAGE-MANIFEST 1 sha256:{hashlib.sha256(body).hexdigest()} {len(body)}\n".encode()
        + body
    )


def golden(name: str, made: bytes) -> bytes:
    path = GOLDEN / name
    if not path.exists():
        path.write_bytes(made)
        raise AssertionError(f"wrote {path}; look at it and run again")
    assert path.read_bytes() == made
    return made


OPTIONAL_LOG = [
    line_of(1, {"kind": "owner", "cluster": "c", "namespace": "n", "name": "j", "uid": "u",
                "lineage": "l", "?region": "eu"}),
    line_of(2, {"kind": "fence", "fence": 1, "holder": "driver-0"}, **{"?trace": {"id": 7}}),
    line_of(3, {"kind": "?placement", "fence": 1, "hosts": ["a", "b"]}),
    line_of(4, {"kind": "run", "fence": 1, "run": 0, "?mood": None}),
    line_of(5, {"kind": "retire", "fence": 1, "checkpoint_id": 1}),
]  # fmt: skip
REFUSED_LOG = {
    "kind=snapshot": line_of(6, {"kind": "snapshot", "fence": 1, "until": 5, "retained": []}),
    "kind=epoch": line_of(6, {"kind": "epoch", "fence": 1, "run": 0, "epoch": 9, "?why": 1}),
    "kind=rescale": line_of(6, {"kind": "rescale", "fence": 1, "parallelism": 8}),
    "`lease`": line_of(6, {"kind": "fence", "fence": 2, "holder": "d", "lease": 30, "?x": 1}),
    "`signature`": line_of(6, {"kind": "run", "fence": 1, "run": 1}, signature="s", **{"?x": 1}),
}


def test_optional_names_in_the_log_are_passed_over() -> None:
    lines = golden("next-log-optional.jsonl", b"".join(OPTIONAL_LOG)).splitlines(keepends=True)
    assert [decode_record(line, "golden").entry for line in lines] == [
        Owner("c", "n", "j", "u", "l"),
        Fence(1, "driver-0"),
        Unknown("?placement", {"fence": 1, "hosts": ["a", "b"]}),
        Run(1, 0),
        Retire(1, 1),
    ]


def test_all_other_names_in_the_log_are_refused_and_told() -> None:
    made = b"".join(REFUSED_LOG.values())
    lines = golden("next-log-refused.jsonl", made).splitlines(keepends=True)
    for name, line in zip(REFUSED_LOG, lines, strict=True):
        with pytest.raises(NewerFormat, match=f"path=golden.*{re.escape(name)}.*newer one"):
            decode_record(line, "golden")


@pytest.fixture
def lineage(store: MemoryStore) -> MemoryStore:
    """A lineage whose log has optional names that this release does not know."""
    for seq, line in enumerate(OPTIONAL_LOG, 1):
        store.put(log_key(seq), line)
    return store


def test_a_driver_goes_on_with_a_lineage_that_has_optional_entries(
    lineage: MemoryStore, new_manifest: Callable[..., Manifest]
) -> None:
    writer = LogWriter.claim(lineage, Owner("c", "n", "j", "u"), "one version back")
    assert writer.fence == 2
    manifest = new_manifest(2, writer=writer, store=lineage)
    CheckpointStore(lineage).complete(writer, manifest, AT)
    assert [c.checkpoint_id for c in retained(writer.entries)] == [2]


@pytest.mark.parametrize("name", [name for name in REFUSED_LOG if name.startswith("kind")])
def test_nobody_goes_on_with_a_lineage_that_has_an_entry_they_must_know(
    lineage: MemoryStore, name: str
) -> None:
    lineage.put(log_key(6), REFUSED_LOG[name])
    for attempt in (
        lambda: LineageLog.open(lineage).read(),
        lambda: LogWriter.claim(lineage, Owner("c", "n", "j", "u"), "one version back"),
    ):
        with pytest.raises(NewerFormat, match=name):
            attempt()
    assert lineage.head(log_key(7)) is None


def test_a_log_whose_beginning_was_put_together_is_told_from_a_damaged_one(
    lineage: MemoryStore,
) -> None:
    for seq in range(1, 6):
        lineage.delete(log_key(seq))
    lineage.put(log_key(6), REFUSED_LOG["kind=snapshot"])
    with pytest.raises(NewerFormat, match="kind=snapshot"):
        LineageLog.open(lineage).read()
    lineage.put(log_key(6), line_of(6, {"kind": "run", "fence": 1, "run": 1}))
    with pytest.raises(CorruptState, match="missing although entry 6 exists"):
        LineageLog.open(lineage).read()


@pytest.mark.parametrize("field", ["?why", "why"])
@pytest.mark.parametrize("within", [True, False])
def test_a_compacted_entry_of_a_later_release_is_read_by_the_same_rule(
    field: str, *, within: bool
) -> None:
    kept = {"kind": "fence", "fence": 1, "holder": "driver-0"}
    line = {"seq": 2, "attempt": "a", "at": "2026-01-02T03:04:05Z", "entry": kept}
    entry: dict[str, Any] = {"kind": "compacted", "fence": 1, "base": 0, "cleared": 0}
    entry |= {"past": {"links": []}, "records": [line]}
    (kept if within else line)[field] = 1
    if field == "why":
        with pytest.raises(NewerFormat, match=r"path=golden.*why"):
            decode_record(line_of(9, entry), "golden")
        return
    found = decode_record(line_of(9, entry), "golden").entry
    assert isinstance(found, Compacted)
    assert found.records[0].entry == Fence(1, "driver-0")


def test_an_object_of_another_kind_in_the_log_is_not_for_people_to_move_away(
    lineage: MemoryStore,
) -> None:
    lineage.put(log_key(5).replace(".json", ".snapshot.json"), b"{}")
    with pytest.raises(NewerFormat, match=r"object=0+5\.snapshot\.json"):
        LineageLog.open(lineage).read()


@pytest.mark.parametrize("name", REFUSED_LOG)
def test_a_driver_that_a_newer_one_took_over_from_is_fenced_whatever_that_wrote(
    store: MemoryStore, owner: Owner, name: str
) -> None:
    writer = LogWriter.claim(store, owner, "one version back")
    store.put(log_key(3), line_of(3, {"kind": "fence", "fence": 2, "holder": "newer"}))
    moved = json.loads(REFUSED_LOG[name])
    more = {n: v for n, v in moved.items() if n in {"signature", "?x"}}
    store.put(log_key(4), line_of(4, moved["entry"], **more))
    with pytest.raises(Fenced, match="fence=2"):
        writer.watch()


def widened(document: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """Give every part of a manifest a field; returns the parts."""
    operator = document["operators"]["counts"]
    handle = operator["subtasks"][0]
    parts = [document, operator, operator["states"][0], handle, handle["files"][0]]
    for part in parts:
        part[name] = {"anything": [1]}
    return parts


def test_optional_fields_of_a_manifest_are_passed_over_and_others_are_refused_and_told(
    new_manifest: Callable[..., Manifest],
) -> None:
    manifest = new_manifest(7, ("a",), created_at=AT)
    plain = encode_manifest(manifest).partition(b"\n")[2]
    document = json.loads(plain)
    widened(document, "?hint")
    assert decode_manifest(golden("next-MANIFEST-optional", manifest_of(document)), "g") == manifest
    for index in range(5):
        document = json.loads(plain)
        widened(document, "?hint")[index]["vital"] = 1
        with pytest.raises(NewerFormat, match=r"path=g .*unknown field `vital`.*newer one"):
            decode_manifest(manifest_of(document), "g")


def test_a_value_that_is_not_known_is_refused_and_told(
    new_manifest: Callable[..., Manifest],
) -> None:
    document = json.loads(encode_manifest(new_manifest(7)).partition(b"\n")[2])
    document["operators"]["counts"]["states"][0]["kind"] = "sorted"
    with pytest.raises(NewerFormat, match=r"'sorted'.*\$\.operators"):
        decode_manifest(manifest_of(document), "g")
