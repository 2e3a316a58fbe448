"""A manifest as a root and the parts that its servers write."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from moorage_testing.parts import rooted
from msgspec.structs import replace

from moorage_state.errors import Bug, CorruptState, NewerFormat, UserError
from moorage_state.snapshots import (
    CheckpointStore,
    LogWriter,
    Manifest,
    Materialized,
    RangeHandle,
    Root,
    SavepointStore,
    decode_snapshot,
    encode_manifest,
    verify_files,
)
from moorage_state.snapshots.parts import (
    Part,
    PartCache,
    decode_part,
    encode_part,
    inherited,
    part_ref,
    read_part,
    references,
    with_files,
)
from moorage_state.stores import MemoryStore

GOLDEN = Path(__file__).parent / "golden"
AT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
NewManifest = Callable[..., Manifest]


@pytest.fixture
def manifest(new_manifest: NewManifest) -> Manifest:
    """With an inline file, a slice of a pack, and a name of a backend."""
    made = new_manifest(7, ("a", "b"), created_at=AT)
    first, second = made.operators["counts"].subtasks
    current, table, *others = first.files
    files = [
        replace(current, key="", inline=b"MANIFEST-000005\n\x00\xff", size=18),
        replace(table, key=f"shared/pack-{'0' * 31}1-0-4096", offset=1024, xxh3="0f" * 16),
        *others,
    ]
    first = replace(first, files=files, bytes_total=sum(f.size for f in files), backend="sqlite")
    counts = replace(made.operators["counts"], subtasks=[first, second])
    return replace(made, operators={"counts": counts})


def golden(name: str, made: bytes) -> bytes:
    path = GOLDEN / name
    if not path.exists():
        path.write_bytes(made)
        raise AssertionError(f"wrote {path}; look at it and run again")
    return path.read_bytes()


def test_a_root_and_a_part_are_written_and_read_as_in_the_golden_files(
    manifest: Manifest, new_manifest: NewManifest, store: MemoryStore
) -> None:
    part = Part(list(manifest.handles), frozenset({manifest.files[1].key}))
    data = golden("part-v1", encode_part(part))
    assert encode_part(part) == data
    assert decode_part(data, "golden") == part
    base = rooted(new_manifest(6, ("a", "c")), store, [[0], [1]])
    root = rooted(manifest, store, [[0], [1]], base)
    data = golden("MANIFEST-v2", encode_manifest(root))
    assert encode_manifest(root) == data
    assert decode_snapshot(data, "golden") == root


def test_a_root_with_its_parts_is_the_manifest_with_all_files(
    manifest: Manifest, store: MemoryStore
) -> None:
    for servers in ([[0, 1]], [[1], [0]]):
        root = rooted(manifest, store, servers)
        whole = with_files(store, root)
        assert (whole.handles, root.bytes_total) == (manifest.handles, manifest.bytes_total)
        assert whole.keys == manifest.keys | {part.key for part in root.parts}
        with pytest.raises(Bug, match="files stand in parts"):
            encode_manifest(whole)


def test_a_flipped_bit_anywhere_in_a_part_is_found(manifest: Manifest) -> None:
    good = encode_part(Part(list(manifest.handles)))
    for position in range(len(good)):
        bad = bytearray(good)
        bad[position] ^= 1 << (position % 8)
        with pytest.raises(CorruptState, match="path=the part"):
            decode_part(bytes(bad), "the part")


def test_a_part_that_is_missing_or_another_is_damage_and_named(
    manifest: Manifest, store: MemoryStore, writer: LogWriter
) -> None:
    root = replace(rooted(manifest, store), lineage=writer.lineage)
    checkpoints = CheckpointStore(store)
    entry = checkpoints.complete(writer, root, AT)
    (part,) = root.parts
    data = store.get(part.key)
    store.put(part.key, encode_part(Part(list(manifest.handles)[:1])))
    with pytest.raises(CorruptState, match="not the one that its root names"):
        checkpoints.load(entry)
    store.delete(part.key)
    with pytest.raises(CorruptState, match="part of a manifest is missing") as caught:
        checkpoints.load(entry)
    assert caught.value.path.endswith(part.key)
    assert checkpoints.load_root(entry) == root
    store.put(part.key, data)
    assert checkpoints.load(entry).handles == manifest.handles


def _with_deltas(manifest: Manifest) -> list[RangeHandle]:
    """The first range is a copy of epoch 0 and deltas since; the others are as they are."""
    first, *others = manifest.handles
    (table,) = [file for file in first.files if file.name.endswith(".sst")][:1]
    deltas = [
        replace(table, name=f"{epoch:020d}-{epoch:032x}.delta", offset=epoch * 100, shared=True)
        for epoch in range(1, first.epoch + 1)
    ]
    files = [*first.files, *deltas]
    logged = replace(
        first,
        files=files,
        bytes_total=sum(file.size for file in files),
        materialized=Materialized(checkpoint_id=3, epoch=0, digest=""),
    )
    return [logged, *others]


def test_a_part_with_deltas_is_written_and_read_as_in_the_golden_file(
    new_manifest: NewManifest,
) -> None:
    handles = _with_deltas(new_manifest(7, ("a", "b"), created_at=AT))
    part = Part(handles)
    data = golden("part-v2", encode_part(part))
    assert encode_part(part) == data
    assert data.startswith(b"MOORAGE-PART 2 ")
    assert decode_part(data, "golden") == part


def test_a_part_that_lacks_the_delta_of_an_epoch_is_not_written(
    new_manifest: NewManifest,
) -> None:
    logged, *_ = _with_deltas(new_manifest(7, ("a", "b"), created_at=AT))
    lacking = [file for file in logged.files if file.name != logged.deltas[1].name]
    size = sum(file.size for file in lacking)
    with pytest.raises(Bug, match="one delta for each epoch from 1 to"):
        encode_part(Part([replace(logged, files=lacking, bytes_total=size)]))


def test_a_newer_part_asks_for_an_upgrade(manifest: Manifest) -> None:
    data = encode_part(Part(list(manifest.handles)))
    _, _, body = data.partition(b"\n")
    newer = body.replace(b"\x94\x01", b"\x94\x03", 1)
    header = data.partition(b"sha256:")[0].replace(b" 1 ", b" 3 ")
    import hashlib

    digest = hashlib.sha256(newer).hexdigest()
    sealed = header + f"sha256:{digest} {len(newer)}\n".encode() + newer
    with pytest.raises(NewerFormat, match="path=x format=3 known=2"):
        decode_part(sealed, "x")


def test_a_root_whose_ranges_and_parts_do_not_agree_is_refused(
    manifest: Manifest, store: MemoryStore
) -> None:
    root = rooted(manifest, store, [[0], [1]])
    one, other = root.parts
    for wrong in (
        replace(root, parts=[one]),
        replace(root, parts=[one, other, other]),
        replace(root, parts=[replace(one, bytes_total=one.bytes_total + 1), other]),
        replace(root, kind="savepoint", name="kept"),
    ):
        with pytest.raises(Bug, match="not complete"):
            encode_manifest(wrong)


def test_the_root_of_a_checkpoint_is_no_savepoint(manifest: Manifest, store: MemoryStore) -> None:
    store.put("MANIFEST", encode_manifest(rooted(manifest, store)))
    with pytest.raises(UserError, match="not a savepoint but a checkpoint"):
        SavepointStore.over(store).load()


def test_ranges_of_one_server_read_a_part_once(manifest: Manifest, store: MemoryStore) -> None:
    ref = rooted(manifest, store).parts[0].ref
    cache = PartCache()
    found = cache.get(store, ref)
    store.delete(ref.key)
    assert cache.get(store, ref) is found


# Who references what: parts of checkpoints after one another, ranges split, joined and moved.

KEYS = st.lists(st.sampled_from("abcdef"), max_size=5, unique=True)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None
)
@given(data=st.data())
def test_what_a_part_says_is_lost_no_other_part_references(
    new_manifest: NewManifest, data: st.DataObject
) -> None:
    fresh = iter(range(10_000))
    parts: list[Part] = []
    for number in range(1, 6):
        count = data.draw(st.sampled_from([1, 2, 4]))
        ranges = [(128 * n // count, 128 * (n + 1) // count - 1) for n in range(count)]
        cut = data.draw(st.integers(1, count))
        base, parts = parts, []
        listed: set[str] = set()
        for mine in filter(None, (ranges[:cut], ranges[cut:])):
            named = [("counts", start, end) for start, end in mine]
            wanted = [
                part
                for part in base
                if any(h.start <= e and h.end >= s for h in part.handles for s, e in mine)
            ]
            before = inherited(named, wanted, 99)
            pack = f"shared/pack-{next(fresh):032x}-0-10"
            handles = []
            for at, (start, end) in enumerate(mine):
                kept = [f for f in before.files[at] if data.draw(st.booleans())]
                keys = {f.key for f in kept}
                if data.draw(st.booleans()):
                    keys.add(pack)
                if data.draw(st.booleans()):
                    keys.add(f"shared/b-{next(fresh)}")
                handles.append(_handle(new_manifest, number, start, end, keys))
            change = references(handles, before)
            parts.append(Part(handles, change.common))
            listed |= set(change.lost)
            assert not set(change.lost) & set(change.unsure)
        now = [frozenset(f.key for h in part.handles for f in h.files) for part in parts]
        old = frozenset(f.key for part in base for h in part.handles for f in h.files)
        assert listed <= old
        assert not listed & frozenset().union(*now)
        for keys_of, part in zip(now, parts, strict=True):
            others = frozenset().union(
                *(k for p, k in zip(parts, now, strict=True) if p is not part)
            )
            assert keys_of & others <= part.common


def _handle(new_manifest: NewManifest, number: int, start: int, end: int, keys: set[str]):
    plain = new_manifest(number).handles[0]
    table = plain.files[1]
    files = [replace(table, name=f"{n}.sst", key=key) for n, key in enumerate(sorted(keys))]
    size = sum(file.size for file in files)
    return replace(plain, start=start, end=end, files=files, bytes_total=size)


def test_a_key_is_a_servers_own_while_its_ranges_stay_together(
    manifest: Manifest, store: MemoryStore
) -> None:
    whole = read_part(store, rooted(manifest, store).parts[0].ref)
    both = [(h.uid, h.start, h.end) for h in whole.handles]
    assert inherited(both, [whole], 99).common == frozenset()
    first = inherited(both[:1], [whole], 99)
    assert first.common == {f.key for f in whole.handles[0].files if "pack" in f.key}
    joined = inherited([("counts", 0, 127)], [whole], 99)
    assert joined.common == joined.keys == {f.key for f in manifest.files if f.shared}


def test_a_root_is_a_format_that_older_releases_refuse(
    manifest: Manifest, store: MemoryStore
) -> None:
    root = rooted(manifest, store)
    assert isinstance(decode_snapshot(encode_manifest(root), "x"), Root)
    assert encode_manifest(root).startswith(b"MOORAGE-MANIFEST 2 ")
    assert part_ref("k", b"x").size == 1


def test_roots_say_what_goes_and_no_part_is_read_for_it(
    new_manifest: NewManifest, store: MemoryStore, writer: LogWriter, monkeypatch: Any
) -> None:
    checkpoints, base = CheckpointStore(store), None
    for number, tables in ((1, "ab"), (2, "bc"), (3, "cd")):
        made = new_manifest(number, tuple(tables), writer=writer, store=store)
        base = rooted(made, store, [[0], [1]], base)
        checkpoints.complete(writer, base, AT)
    with monkeypatch.context() as patch:
        patch.setattr("moorage_state.snapshots.checkpoints.with_files", None)
        CheckpointStore(store).retire(writer, 1)
    whole = checkpoints.load_id(writer.entries, 3)
    left = {info.key for info in store.list("") if not info.key.startswith("log/")}
    assert left == {"chk-3/MANIFEST", *whole.keys}
    verify_files(store, whole, full=True)


def test_what_another_part_may_need_is_left_to_the_sweep_and_at_a_jobs_end_goes(
    new_manifest: NewManifest, store: MemoryStore, writer: LogWriter
) -> None:
    checkpoints = CheckpointStore(store)
    first = rooted(new_manifest(1, ("a", "b"), writer=writer, store=store), store)
    checkpoints.complete(writer, first, AT)
    made = new_manifest(2, ("b",), writer=writer, store=store)
    one, other = made.operators["counts"].subtasks
    halves = [replace(one, start=at, end=at + 31, bytes_total=one.bytes_total) for at in (0, 32)]
    counts = replace(made.operators["counts"], subtasks=[*halves, other], parallelism=3)
    second = rooted(replace(made, operators={"counts": counts}), store, [[0], [1, 2]], first)
    checkpoints.complete(writer, second, AT)
    assert [part.unsure for part in second.parts] == [["shared/b0-a.sst-0123"]] * 2
    assert [part.lost for part in second.parts] == [[], ["shared/b64-a.sst-0123"]]
    checkpoints.retire(writer, 1)
    assert {info.key for info in store.list("shared/")} == {
        "shared/b0-a.sst-0123",
        "shared/b0-b.sst-0123",
        "shared/b64-b.sst-0123",
    }
    checkpoints.retire(writer, None)
    assert [info.key for info in store.list("") if not info.key.startswith("log/")] == []


def test_full_checkpoints_go_without_a_look_at_the_parts_of_those_that_stay(
    store: MemoryStore, writer: LogWriter, new_manifest: NewManifest, start: datetime
) -> None:
    read: list[str] = []

    class Reading:
        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def get(self, key: str) -> bytes:
            read.append(key)
            return store.get(key)

    reading: Any = Reading()
    checkpoints = CheckpointStore(reading)
    for number in (1, 2, 3):
        plain = new_manifest(number, (f"n{number}",), writer=writer, store=store)
        checkpoints.complete(writer, rooted(plain, store), start)
        read.clear()
        checkpoints.retire(writer, 1)
        assert not [key for key in read if key.startswith(f"chk-{number}/") and "part-" in key]
    verify_files(store, checkpoints.load_id(writer.entries, 3), full=True)
    shared = [info.key for info in store.list("shared/")]
    assert all("-n3.sst" in key for key in shared)
    assert len(shared) == 2
