"""Directories of partitions and the files in them."""

import base64
import datetime
import json
from decimal import Decimal
from pathlib import Path

import hypothesis.strategies as st
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from hypothesis import given

from moorage.api.file_sink import FileSink
from moorage.api.sinks import LiveOutput, SinkContext, SinkRestore, SinkRetire, StageId
from moorage.sinks import file_writer
from moorage.sinks.file_writer import check_partitioning, partition_name, split
from moorage_state.errors import UserError

SCHEMA = pa.schema([("n", pa.int64()), ("day", pa.string()), ("ok", pa.bool_())])
LINEAGE = "0f3c"
STAGE = StageId(LINEAGE, "f1r0", 1, "count", 0)


def write(sink, rows, schema=SCHEMA, stage=STAGE):
    writer = sink.open_writer(stage, schema)
    writer.write(pa.RecordBatch.from_pylist(rows, schema=schema))
    return writer.finish()


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("plain", "c=plain"),
        (None, "c=__HIVE_DEFAULT_PARTITION__"),
        ("", "c=__HIVE_DEFAULT_PARTITION__"),
        ("a/b:c=d%", "c=a%2Fb%3Ac%3Dd%25"),
        ("a b.c-d_e", "c=a b.c-d_e"),
        ("\n\x7f\x85", "c=%0A%7F%85"),
        ("{[^?*\\\"'#]}", "c=%7B%5B%5E%3F%2A%5C%22%27%23%5D}"),
        ("größe", "c=größe"),
        (-7, "c=-7"),
        (True, "c=true"),
        (False, "c=false"),
        (datetime.date(2026, 1, 2), "c=2026-01-02"),
        (Decimal("1E+3"), "c=1000"),
    ],
)
def test_a_partition_is_named_as_spark_names_it(value, name):
    assert partition_name("c", value) == name


@pytest.mark.parametrize("value", ["x" * 254, "\u200b", "é" * 127])
def test_a_value_that_no_directory_can_have_is_refused(value):
    with pytest.raises(UserError, match="too long for a directory name, or has characters"):
        partition_name("c", value)


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.sampled_from([None, "a", "b"]), st.none() | st.booleans())
    )
)
def test_rows_are_split_by_partition_in_their_order(rows):
    names = ("n", "day", "ok")
    batch = pa.RecordBatch.from_pylist([dict(zip(names, r, strict=True)) for r in rows], SCHEMA)
    found = {folder: part.column("n").to_pylist() for folder, part in split(batch, ["day", "ok"])}
    wanted: dict[str, list[int]] = {}
    for n, day, ok in rows:
        folder = f"{partition_name('day', day)}/{partition_name('ok', ok)}"
        wanted.setdefault(folder, []).append(n)
    assert found == wanted


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (["nope"], r"needs different columns of the stream: partition_by=\['nope'\]"),
        (["n", "n"], "needs different columns"),
        (["n", "day", "ok"], "takes every column"),
    ],
)
def test_partitions_are_columns_of_the_stream(columns, words):
    with pytest.raises(UserError, match=words):
        check_partitioning(SCHEMA, columns)


@pytest.mark.parametrize(
    "kind", [pa.float64(), pa.timestamp("us"), pa.binary(), pa.list_(pa.int8())]
)
def test_types_without_a_sure_spelling_are_no_partitions(kind):
    schema = pa.schema([("n", pa.int64()), ("c", kind)])
    with pytest.raises(UserError, match="no sure spelling as a directory name: column=c type="):
        check_partitioning(schema, ["c"])


@pytest.mark.parametrize("commit", ["rename", "list"])
def test_other_tools_read_partitions_as_columns(tmp_path, commit):
    sink = FileSink(tmp_path / "out", partition_by=["day"], commit=commit)
    rows = [{"n": n, "day": ["a", "b", None][n % 3], "ok": True} for n in range(6)]
    sink.publish(LINEAGE, 1, write(sink, rows))
    files = sink.files()
    assert len(files) == 3
    table = ds.dataset(files, partitioning="hive", partition_base_dir=str(tmp_path)).to_table()
    assert sorted(table.column("n").to_pylist()) == list(range(6))
    assert set(table.column("day").to_pylist()) == {"a", "b", None}


def test_going_back_and_forward_moves_whole_partitions(tmp_path):
    sink = FileSink(tmp_path / "out", partition_by=["n"])
    items = {i: write(sink, [{"n": i, "day": "x"}, {"n": 9, "day": "y"}]) for i in (1, 2)}
    for i, staged in items.items():
        sink.publish(LINEAGE, i, staged)
    both = sink.files()
    sink.restore(SinkRestore(LINEAGE, "f2r0", (1,), items[1]))
    assert len(sink.files()) == 2
    sink.restore(SinkRestore(LINEAGE, "f3r0", (1, 2), items[2]))
    assert sink.files() == both
    sink.restore(SinkRestore(LINEAGE, "f4r0", (1,), items[1]))
    live = (LiveOutput((1,), items[1]),)
    sink.retire(SinkRetire(LINEAGE, "f4r0", 1, 1, live))
    assert len(list((tmp_path / "out").rglob("*.parquet"))) == 2
    assert not list((tmp_path / "out" / "_retracted" / LINEAGE).iterdir())


def test_what_a_checkpoint_looks_at_does_not_grow_with_the_partitions_before_it(tmp_path):
    sink = FileSink(tmp_path / "out", partition_by=["n", "ok"])
    own = tmp_path / "out" / "_staging" / LINEAGE / "f1r0"
    for n in (1, 2):
        items = write(sink, [{"n": n, "ok": ok, "day": "x"} for ok in (True, False)])
        later = write(sink, [{"n": n, "ok": True, "day": "of the next checkpoint"}])
        aborted = sink.open_writer(STAGE, SCHEMA)
        aborted.write(pa.RecordBatch.from_pylist([{"n": 9}], schema=SCHEMA))
        aborted._flush("n=9/ok=__HIVE_DEFAULT_PARTITION__")
        assert (own / "n=9").is_dir()
        aborted.abort()
        sink.publish(LINEAGE, n, items)
        assert [str(p.relative_to(own)) for p in own.rglob("*=*")] == [f"n={n}", f"n={n}/ok=true"]
        sink.publish(LINEAGE, n, [*items, *later])
        assert not list(own.iterdir())
    assert len(sink.files()) == 6


def test_a_folder_that_is_removed_as_a_file_is_made_in_it_is_made_again(tmp_path, monkeypatch):
    sink = FileSink(tmp_path / "out", partition_by=["n"])
    touch = Path.touch
    removed: list[Path] = []

    def too_late(path):
        if len(removed) < 3:
            path.parent.rmdir()
            removed.append(path)
        touch(path)

    monkeypatch.setattr(Path, "touch", too_late)
    sink.publish(LINEAGE, 1, write(sink, [{"n": 1, "ok": True, "day": "x"}]))
    assert len(removed) == 3
    assert len(sink.files()) == 1


def test_an_attempt_with_many_partitions_keeps_few_files_open(tmp_path, monkeypatch):
    monkeypatch.setattr(file_writer, "_MAX_OPEN", 2)
    monkeypatch.setattr(file_writer, "_GROUP_BYTES", 1)  # no row waits
    sink = FileSink(tmp_path / "out", partition_by=["n"])
    rows = [{"n": n % 5, "day": "x"} for n in range(10)]
    writer = sink.open_writer(STAGE, SCHEMA)
    for row in rows:
        writer.write(pa.RecordBatch.from_pylist([row], schema=SCHEMA))
        assert len(writer._open) <= 2
    items = writer.finish()
    assert sum(item["rows"] for item in items) == 10
    assert len({item["file"] for item in items}) == len(items) == 10


@pytest.mark.parametrize(("room", "files"), [(64 << 20, 40), (100_000, 400)])
def test_more_partitions_than_files_may_be_open_have_few_files(tmp_path, monkeypatch, room, files):
    monkeypatch.setattr(file_writer, "_WAITING_BYTES", room)
    sink = FileSink(tmp_path / "out", partition_by=["n"])
    writer = sink.open_writer(STAGE, SCHEMA)
    rows = [{"n": n, "day": f"d{n}"} for n in range(40)]
    for _ in range(20):
        writer.write(pa.RecordBatch.from_pylist(rows, schema=SCHEMA))
        assert writer._waiting_bytes < room
    items = writer.finish()
    assert len(items) <= files
    sink.publish(LINEAGE, 1, items)
    table = ds.dataset(sink.files(), partitioning="hive").to_table()
    assert table.num_rows == 800
    assert table.group_by("day").aggregate([("day", "count")]).column(1).to_pylist() == [20] * 40


def test_json_has_a_row_a_line_and_words_for_what_json_lacks(tmp_path):
    schema = pa.schema(
        [
            ("ratio", pa.float64()),
            ("raw", pa.binary()),
            ("price", pa.decimal128(5, 2)),
            ("at", pa.timestamp("us", tz="UTC")),
            ("tags", pa.list_(pa.float32())),
            ("by", pa.map_(pa.string(), pa.float64())),
            ("in", pa.struct([("x", pa.binary()), ("y", pa.int8())])),
        ]
    )
    row = {
        "ratio": float("nan"),
        "raw": b"\xff",
        "price": Decimal("1.50"),
        "at": datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
        "tags": [float("inf"), None, 0.5],
        "by": [("k", float("-inf"))],
        "in": {"x": b"a", "y": 1},
    }
    sink = FileSink(tmp_path / "out", "json")
    sink.publish(LINEAGE, 1, write(sink, [row, dict.fromkeys(schema.names)], schema))
    (file,) = sink.files()
    first, second = Path(file).read_text().splitlines()
    assert json.loads(first) == {
        "ratio": "NaN",
        "raw": base64.b64encode(b"\xff").decode(),
        "price": 1.5,
        "at": "2026-01-02T00:00:00Z",
        "tags": ["Infinity", None, 0.5],
        "by": {"k": "-Infinity"},
        "in": {"x": "YQ==", "y": 1},
    }
    assert '"price":1.50' in first
    assert set(json.loads(second).values()) == {None}


def test_a_relative_path_is_relative_to_the_job_file():
    bound = FileSink("out/./x").bind(SinkContext("out", "/job", "", SCHEMA))
    assert bound.path == "/job/out/x"
    assert FileSink("/out").bind(SinkContext("out", "", "", SCHEMA)).path == "/out"


def test_a_relative_path_without_a_job_file_is_refused():
    with pytest.raises(UserError, match="needs a job file that it is relative to"):
        FileSink("out").bind(SinkContext("out", "", "", SCHEMA))
    with pytest.raises(UserError, match="this path is relative to a job file"):
        FileSink("out").open_writer(STAGE, SCHEMA)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"format": "csv"}, "the format is 'parquet' or 'json': format='csv'"),
        ({"partition_by": "day"}, r"partition_by is a list of columns: partition_by=\['day'\]"),
        ({"commit": "magic"}, "commit is 'rename'"),
    ],
)
def test_wrong_options_are_refused_at_once(options, words):
    with pytest.raises(UserError, match=words):
        FileSink("/out", **options)


def test_a_store_has_no_rename():
    with pytest.raises(UserError, match=r"commit is .rename. \(directories only\)"):
        FileSink("s3://bucket/out", commit="rename")
