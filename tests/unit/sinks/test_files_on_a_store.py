"""The file sink where nothing can be renamed: the list of visible files, and who may change it."""

import io
import json
import pickle

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from moorage.api.file_sink import FileSink
from moorage.api.sinks import LiveOutput, SinkRestore, SinkRetire, StageId
from moorage.sinks.metadata_log import MetadataLog
from moorage_state.errors import CorruptState, Fenced, NewerFormat, UserError
from moorage_state.stores import open_store

SCHEMA = pa.schema([("n", pa.int64())])
LINEAGE = "0f3c"


@pytest.fixture
def sink(store_url):
    return FileSink(store_url)


@pytest.fixture
def store(store_url):
    return open_store(store_url)


def stage(sink, *numbers, epoch=1, run="f1r0", lineage=LINEAGE):
    writer = sink.open_writer(StageId(lineage, run, epoch, "count", 0), SCHEMA)
    writer.write(pa.RecordBatch.from_pydict({"n": list(numbers)}, schema=SCHEMA))
    return writer.finish()


def restore(sink, *history, items=(), run="f9r0", live=(), lineage=LINEAGE):
    return sink.restore(SinkRestore(lineage, run, history, list(items), live))


def read(sink, store):
    keys = [path.partition("memory://sinks/")[2] for path in sink.files()]
    tables = [pq.read_table(io.BytesIO(store.get(key))) for key in keys]
    return sorted(n for table in tables for n in table.column("n").to_pylist())


def entries(store):
    return [i.key.rpartition("/")[2] for i in store.list("_spark_metadata/")]


def test_uploaded_rows_are_seen_once_their_checkpoint_is_published(sink, store):
    items = stage(sink, 1, 2) + stage(sink, 3)
    assert sink.files() == []
    assert sink.publish(LINEAGE, 7, items) == 3
    assert read(sink, store) == [1, 2, 3]


def test_publishing_again_changes_nothing(sink, store):
    items = stage(sink, 1, 2)
    for _ in range(3):
        assert sink.publish(LINEAGE, 7, items) == 2
        assert entries(store) == ["19.compact", "20", "9.compact"]


def test_a_new_list_begins_with_two_compact_entries_and_a_version(sink, store):
    sink.publish(LINEAGE, 7, stage(sink, 1))
    assert store.get("_spark_metadata/9.compact") == b"v1"
    version, line = store.get("_spark_metadata/20").decode().split("\n")
    assert version == "v1"
    status = json.loads(line)
    assert status["path"].startswith(f"memory://sinks/_data/part-{LINEAGE}-f1r0-")
    assert status["action"] == "add"
    assert status["size"] == store.head(status["path"].partition("sinks/")[2]).size


def test_every_tenth_entry_holds_all_that_is_visible(sink, store):
    for n in range(1, 12):
        sink.publish(LINEAGE, n, stage(sink, n))
    assert len(store.get("_spark_metadata/29.compact").split(b"\n")) == 1 + 10
    assert read(sink, store) == list(range(1, 12))


def test_going_back_and_forward_is_one_step_each_and_says_so(sink, store):
    items = {n: stage(sink, n) for n in (1, 2, 3)}
    for n, staged in items.items():
        sink.publish(LINEAGE, n, staged)
    (sentence,) = restore(sink, 1, items=items[1], run="f2r0")
    assert sentence == (
        "took published files off the list that the restore point does not cover: "
        "store=memory://sinks files=2"
    )
    assert read(sink, store) == [1]
    assert entries(store)[-1] == "9.compact"
    assert "29.compact" in entries(store)
    (sentence,) = restore(sink, 1, 2, 3, items=items[3], run="f3r0")
    assert sentence == (
        "put files back on the list that an earlier restore took off: store=memory://sinks files=2"
    )
    assert read(sink, store) == [1, 2, 3]
    assert restore(sink, 1, 2, 3, items=items[3], run="f4r0") == []


def test_a_driver_that_was_replaced_cannot_publish(sink, store):
    first = stage(sink, 1)
    restore(sink, run="f2r0")
    with pytest.raises(Fenced, match=r"a newer run took over the output: .* run=f2r0 own=f1r0"):
        sink.publish(LINEAGE, 1, first)
    assert read(sink, store) == []


def test_a_driver_that_read_the_list_before_it_was_replaced_cannot_append(sink, store, monkeypatch):
    """It looked for newer runs, stalls before its put, and goes on."""
    items = stage(sink, 1)
    original = MetadataLog._append
    stalled = iter([True])

    def append(log, *args):
        if next(stalled, False):
            restore(sink, run="f2r0")
        return original(log, *args)

    monkeypatch.setattr(MetadataLog, "_append", append)
    with pytest.raises(Fenced):
        sink.publish(LINEAGE, 1, items)
    assert read(sink, store) == []


def test_two_lineages_commit_to_one_folder(sink, store):
    for n in range(1, 9):
        sink.publish(LINEAGE, n, stage(sink, n))
        sink.publish("other", n, stage(sink, 100 + n, lineage="other"))
    restore(sink, run="f2r0")
    assert read(sink, store) == [100 + n for n in range(1, 9)]


def test_a_missing_upload_is_found_before_anything_changes(sink, store):
    sink.publish(LINEAGE, 1, stage(sink, 1))
    (item,) = stage(sink, 2)
    store.delete(f"_data/{item['file']}")
    before = [(i.key, i.size) for i in store.list("")]
    with pytest.raises(CorruptState, match="an output file that the checkpoint covers is missing"):
        restore(sink, 1, 2, items=[item])
    assert [(i.key, i.size) for i in store.list("")] == before


def test_a_list_that_another_writer_began_is_left_alone(sink, store):
    store.put("_spark_metadata/0", b"v1")
    with pytest.raises(UserError, match=r"another writer began.*give the sink a folder of its own"):
        sink.publish(LINEAGE, 1, stage(sink, 1))
    assert entries(store) == ["0"]


@pytest.mark.parametrize("damage", [b"", b"v2\n{}", b"v1\n{", b"v1\n[]"])
def test_a_damaged_entry_is_an_error(sink, store, damage):
    sink.publish(LINEAGE, 1, stage(sink, 1))
    store.put("_spark_metadata/20", damage)
    with pytest.raises(CorruptState, match="list of visible files is damaged"):
        sink.files()


def test_a_missing_entry_is_an_error(sink, store):
    for n in (1, 2):
        sink.publish(LINEAGE, n, stage(sink, n))
    store.delete("_spark_metadata/20")
    with pytest.raises(CorruptState, match="an entry of the list of visible files is missing"):
        sink.files()


@pytest.mark.parametrize("damage", [b"", b"[]", b'{"format":1}', b'{"format":1,"checkpoints":[]}'])
def test_a_damaged_record_is_an_error(sink, store, damage):
    sink.publish(LINEAGE, 1, stage(sink, 1))
    store.put(f"_moorage_log/{LINEAGE}/{1:020d}.json", damage)
    with pytest.raises(CorruptState, match="a record of published output is damaged"):
        restore(sink)


def test_a_record_of_a_newer_format_is_refused(sink, store):
    store.put(f"_moorage_log/{LINEAGE}/{1:020d}.json", b'{"format":9}')
    with pytest.raises(NewerFormat, match=r"a newer moorage: .*format=9 known=1; upgrade moorage"):
        restore(sink)


def test_retiring_keeps_few_records_and_few_entries_however_long_it_runs(sink, store):
    history: tuple[int, ...] = ()
    for n in range(1, 81):
        items = stage(sink, n, epoch=n)
        stage(sink, 1000 + n, epoch=n)  # an attempt that lost
        sink.publish(LINEAGE, n, items)
        history = (*history, n)
        live = (LiveOutput(history, items),)
        sink.retire(SinkRetire(LINEAGE, "f1r0", n, n, live))
    assert read(sink, store) == list(range(1, 81))
    assert len(list(store.list(f"_moorage_log/{LINEAGE}/"))) <= 21
    assert len(entries(store)) <= 36
    assert len(list(store.list("_data/"))) == 80
    restore(sink, run="f2r0")
    assert read(sink, store) == []


def test_retiring_never_touches_rows_of_epochs_that_no_checkpoint_covers_yet(sink, store):
    items = stage(sink, 1, epoch=1)
    sink.publish(LINEAGE, 16, items)
    later = stage(sink, 2, epoch=2) + stage(sink, 3, epoch=1, run="f2r0")
    sink.retire(SinkRetire(LINEAGE, "f1r0", 1, 16, (LiveOutput((16,), items),)))
    assert all(store.head(f"_data/{item['file']}") for item in later)


def test_a_replaced_driver_retires_nothing(sink, store):
    items = stage(sink, 1)
    sink.publish(LINEAGE, 1, items)
    restore(sink, 1, items=items, run="f2r0")
    before = [i.key for i in store.list("")]
    sink.retire(SinkRetire(LINEAGE, "f1r0", 9, 16, ()))
    assert [i.key for i in store.list("")] == before


def test_an_aborted_attempt_leaves_no_object(sink, store):
    writer = sink.open_writer(StageId(LINEAGE, "f1r0", 1, "count", 0), SCHEMA)
    writer.write(pa.RecordBatch.from_pydict({"n": [1]}, schema=SCHEMA))
    writer.finish()
    writer.abort()
    assert list(store.list("")) == []


def test_spark_finds_files_of_a_bucket_under_its_own_scheme():
    sink = pickle.loads(pickle.dumps(FileSink("s3://bucket/out/?endpoint=http://localhost:1")))
    assert sink.reader_url == "s3a://bucket/out"
    assert FileSink("s3://bucket/out", reader_url="s3n://x/").reader_url == "s3n://x"
    assert FileSink("/data/a b", commit="list").reader_url == "file:///data/a%20b"
