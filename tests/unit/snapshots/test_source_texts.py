"""The log of a source, which grows at its end: cut, stored once, and put together again."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moorage_testing.manifests import checkpoint_fields
from msgspec import UNSET
from msgspec.structs import replace

from moorage_state.errors import CorruptState, LocalDiskError
from moorage_state.snapshots import (
    CheckpointStore,
    Cutter,
    CutText,
    LogWriter,
    Root,
    decode_snapshot,
    encode_manifest,
    source_texts,
    store_texts,
    sweep,
    with_local,
    with_texts,
)
from moorage_state.snapshots.deletion import garbage_of
from moorage_state.snapshots.parts import with_files
from moorage_state.snapshots.savepoints import as_savepoint
from moorage_state.snapshots.source_texts import Chunk, refs_of
from moorage_state.stores import MemoryStore

GOLDEN = Path(__file__).parent / "golden" / "MANIFEST-v2-source-texts"
AT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
PATH = ("inputs", "in", "files")


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_texts, "CHUNK_SIZES", (4096, 512, 64))


@pytest.fixture
def log(tmp_path: Path) -> "Log":
    return Log(tmp_path)


class Log:
    """A source's log on this disk, and checkpoints of it in a store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.text = "v1\n"
        self.cutter = Cutter()
        self.store = MemoryStore("texts")
        self.roots: dict[int, Root] = {}
        self.written: list[int] = []

    def write(self, name: str, lines: int = 0) -> Path:
        self.text += "".join(f'{{"path":"é/{len(self.text)}-{n}"}}\n' for n in range(lines))
        file = self.folder / name
        file.write_bytes(self.text.encode())
        return file

    def cut(self, name: str) -> tuple[dict[str, Any], list[CutText]]:
        self.cutter.begin()
        tail = self.cutter.cut((*PATH, name), self.folder / name)
        return {"inputs": {"in": {"files": {name: tail}}}}, self.cutter.taken()

    def take(self, name: str, base: int = 0, **fields: Any) -> Root:
        source, texts = self.cut(name)
        number = len(self.written) + 1
        stored = store_texts(self.store, texts, self.roots.get(base), f"u{number}")
        made = {**checkpoint_fields("lineage", number), "source": source, "base_id": base}
        root = Root(**{**made, "source_texts": stored.texts, **fields})
        self.roots[number] = root
        self.written.append(stored.bytes)
        return root

    def whole(self, root: Root) -> list[str]:
        found = with_texts(self.store, root)["inputs"]["in"]["files"].values()
        return [str(text) for text in found]

    @property
    def keys(self) -> set[str]:
        return {info.key for info in self.store.list("")}


def keys_of(root: Root) -> set[str]:
    return {ref.key for ref in refs_of(root)}


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_checkpoint_has_its_text_whole_and_what_goes_is_what_none_needs(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    log = Log(tmp_path_factory.mktemp("log"))
    texts: dict[int, str] = {}
    for number in range(1, data.draw(st.integers(2, 12))):
        name = f"{number}.compact"
        if number == 1 or data.draw(st.booleans()):
            log.write(name, data.draw(st.integers(0, 60)))
        else:
            name = f"{number - 1}.compact" if number == 2 else name
            log.write(name)
        # Mostly the newest; sometimes the one before, because a checkpoint failed, or none.
        base = data.draw(st.sampled_from([*[number - 1] * 4, max(0, number - 2), 0]))
        root = log.take(name, base if base in log.roots else 0)
        texts[number] = log.text
        assert decode_snapshot(encode_manifest(root), "own") == root
        assert log.whole(root) == [log.text]
        kept = {number} | data.draw(st.sets(st.sampled_from(sorted(log.roots))))
        gone = garbage_of(log.roots, kept)
        if gone is not None:
            needed = set().union(*(keys_of(log.roots[one]) for one in kept))
            going = gone.keys.union(*(keys_of(log.roots[one]) for one in gone.whole))
            assert not going & needed
            log.store.delete_many(going)
            log.roots = {one: log.roots[one] for one in log.roots if one in kept}
            assert [log.whole(log.roots[one]) for one in kept] == [[texts[one]] for one in kept]


def test_a_checkpoint_writes_what_is_new_and_reads_what_is_new(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.write("9.compact", 2000)
    log.take("9.compact")
    read: list[int] = []
    hashed = source_texts._chunks

    def spied(file: Path, before: Iterable[tuple[Chunk, ...]]) -> tuple[Chunk, ...]:
        known = [chunk for chunks in before for chunk in chunks]
        found = hashed(file, [tuple(known)])
        read.append(sum(chunk.size for chunk in found if chunk not in known))
        return found

    monkeypatch.setattr(source_texts, "_chunks", spied)
    for number in range(2, 60):
        log.write(f"{number}9.compact", 2)
        root = log.take(f"{number}9.compact", number - 1)
        assert log.whole(root) == [log.text]
        assert len(refs_of(root)) < 12 + 8 + 8  # of each size fewer than make one of the next
        assert len(root.source["inputs"]["in"]["files"][f"{number}9.compact"]) < 64
    added = 58 * 2 * 20
    # A byte is written once for each size of chunks, which may be complete at the end by chance.
    assert sum(log.written[1:]) == sum(read) < 3 * added + sum(source_texts.CHUNK_SIZES)
    log.store.delete_many(log.keys - keys_of(root))
    assert log.whole(root) == [log.text]


def test_a_file_of_the_same_name_is_not_read_again(log: Log) -> None:
    file = log.write("9.compact", 50)
    before = log.cut("9.compact")
    data = bytearray(file.read_bytes())
    data[:8] = b"notread!"
    file.write_bytes(data)
    assert log.cut("9.compact") == before


def test_a_log_that_does_not_begin_as_before_is_cut_anew(log: Log) -> None:
    log.write("9.compact", 100)
    log.take("9.compact")
    log.text = "v1\n" + "x" * 7
    log.write("19.compact", 100)
    root = log.take("19.compact", 1)
    assert log.whole(root) == [log.text]
    assert not keys_of(root) & keys_of(log.roots[1])
    assert root.lost == keys_of(log.roots[1])


def test_a_new_run_writes_only_what_its_restore_point_lacks(log: Log) -> None:
    log.write("9.compact", 100)
    restored = log.take("9.compact")
    log.cutter = Cutter(restored)
    log.write("19.compact", 1)
    root = log.take("19.compact", 1)
    assert log.written[1] < 200
    assert keys_of(root) & keys_of(restored)


def test_nothing_is_referenced_that_the_base_does_not(log: Log) -> None:
    """What a checkpoint wrote that failed may be deleted by whoever finds it."""
    log.write("9.compact", 50)
    log.take("9.compact")
    log.write("19.compact", 50)
    failed = log.take("19.compact", 1)
    after = log.take("19.compact", 1)
    assert keys_of(after) & keys_of(failed) <= keys_of(log.roots[1])
    assert log.whole(after) == [log.text]


def test_small_texts_stand_in_the_manifest_as_earlier_releases_read_them(log: Log) -> None:
    log.write("0", 1)
    root = log.take("0")
    assert root.source_texts is UNSET
    assert b"source_texts" not in encode_manifest(root)


def test_what_an_input_that_was_dropped_had_is_lost(log: Log) -> None:
    log.write("9.compact", 50)
    base = log.take("9.compact")
    stored = store_texts(log.store, [], base, "u2")
    assert stored.texts is not UNSET
    assert set(stored.texts.lost) == keys_of(base)


def test_a_savepoint_has_its_text_whole_from_this_disk(log: Log) -> None:
    log.write("9.compact", 100)
    source, texts = log.cut("9.compact")
    assert with_local(source, texts) == {"inputs": {"in": {"files": {"9.compact": log.text}}}}
    (log.folder / "9.compact").write_bytes(b"x" * len(log.text.encode()))
    with pytest.raises(LocalDiskError, match=r"was changed: path=.*9\.compact offset=0"):
        with_local(source, texts)
    (log.folder / "9.compact").unlink()
    with pytest.raises(LocalDiskError, match="cannot read the log of a source"):
        store_texts(log.store, texts, None, "u")


@pytest.mark.parametrize("damage", ["missing", "checksum"])
def test_a_piece_that_is_not_as_it_was_written_is_named(log: Log, damage: str) -> None:
    log.write("9.compact", 100)
    root = log.take("9.compact")
    key = refs_of(root)[1].key
    if damage == "missing":
        log.store.delete(key)
    else:
        log.store.put(key, b"x" * refs_of(root)[1].size)
    with pytest.raises(CorruptState, match=damage) as raised:
        with_texts(log.store, root)
    assert raised.value.path == f"{log.store.url}/{key}"


def test_a_manifest_whose_source_lacks_the_text_is_damaged(log: Log) -> None:
    log.write("9.compact", 100)
    root = replace(log.take("9.compact"), source={"inputs": {}})
    with pytest.raises(CorruptState, match="no such text"):
        with_texts(log.store, root)


def test_a_copy_needs_nothing_of_the_lineage(log: Log) -> None:
    log.write("9.compact", 100)
    root = log.take("9.compact")
    log.store.put("chk-1/MANIFEST", encode_manifest(root))
    whole = with_files(log.store, root)
    assert keys_of(root) <= whole.keys
    copied, _ = as_savepoint(whole, "copy")
    assert copied.source == {"inputs": {"in": {"files": {"9.compact": log.text}}}}
    assert b"shared/source" not in encode_manifest(copied)


def test_a_sweep_leaves_what_a_checkpoint_has_and_takes_the_rest(
    log: Log, writer: LogWriter, store: MemoryStore
) -> None:
    log.store = store
    log.write("9.compact", 50)
    own: dict[str, Any] = {"fence": writer.fence, "lineage": writer.lineage}
    root = log.take("9.compact", **own)
    store.put("shared/source-0123456789abcdef-u9", b"of a checkpoint that failed")
    CheckpointStore(store).complete(writer, root, AT)
    swept = sweep(store, writer, age_floor=timedelta(0))
    assert [info.key for info in swept.objects] == ["shared/source-0123456789abcdef-u9"]
    assert log.whole(root) == [log.text]


def test_a_root_with_texts_is_written_and_read_as_in_the_golden_file(log: Log) -> None:
    log.text = "v1\n" + "a" * 700
    log.write("9.compact")
    root = log.take("9.compact", created_at=AT)
    made = encode_manifest(root)
    if not GOLDEN.exists():
        GOLDEN.write_bytes(made)
        raise AssertionError(f"wrote {GOLDEN}; look at it and run again")
    assert made == GOLDEN.read_bytes()
    assert decode_snapshot(made, "golden") == root
