import csv
import json
import resource
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from moorage_testing.lineages import SmallJob

import moorage.state
from moorage.offline import export as export_module
from moorage.offline.export import export
from moorage.offline.lookup import find
from moorage_state.errors import CorruptState, LocalDiskError, UserError

STATES = ("visit", "pages", "by_day", "_timers")


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A state that takes far more room as text than in its database."""
    with SmallJob(tmp_path / "large", tmp_path / "scratch") as job:
        job.visit(range(300), note="x" * 4000)
        job.checkpoint()
    return tmp_path / "large"


@pytest.mark.parametrize("state", STATES)
def test_parquet_has_the_rows_that_a_reader_gets(directory, tmp_path, state):
    target = tmp_path / "out.parquet"
    done = export(find(str(directory)), f"visits/{state}", target)
    table = pq.read_table(target)
    wanted = moorage.state.read(directory, "visits", state)
    assert table.schema.equals(wanted.schema)
    # As text, because a NaN equals nothing.
    assert str(table.to_pylist()) == str(wanted.to_pylist())
    assert (done.rows, done.bytes) == (table.num_rows, target.stat().st_size)


def test_rows_of_many_key_groups_share_row_groups_that_stay_small(large, tmp_path, monkeypatch):
    export(find(str(large)), "visits/visit", tmp_path / "one.parquet")
    assert pq.read_metadata(tmp_path / "one.parquet").num_row_groups == 1
    monkeypatch.setattr(export_module, "_ROW_GROUP_BYTES", 500_000)
    export(find(str(large)), "visits/visit", tmp_path / "some.parquet")
    metadata = pq.read_metadata(tmp_path / "some.parquet")
    assert (metadata.num_row_groups, metadata.num_rows) == (3, 300)


def test_lines_of_json_have_a_row_each(directory, tmp_path):
    target = tmp_path / "out.jsonl"
    done = export(find(str(directory)), "visits/visit", target)
    rows = [json.loads(line) for line in target.read_text().splitlines()]
    by_key = {row["key"]: row["value"] for row in rows}
    assert len(rows) == done.rows == 41
    assert by_key["user-3"] == {"n": 3, "at": "2026-01-02T03:04:05Z", "note": "again"}


def test_csv_has_a_header_and_text_for_what_is_nested(directory, tmp_path):
    export(find(str(directory)), "visits/visit", tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = {row["key"]: row for row in csv.DictReader(file)}
    assert len(rows) == 41
    assert json.loads(rows["user-3"]["value"])["note"] == "again"


def test_text_with_commas_quotes_and_lines_survives(tmp_path):
    note = 'a,"b"\nc\r\nd;é'
    with SmallJob(tmp_path / "dir", tmp_path / "scratch") as job:
        job.visit([1], note=note)
        job.checkpoint()
    found = find(str(tmp_path / "dir"))
    export(found, "visits/visit", tmp_path / "out.csv")
    export(found, "visits/visit", tmp_path / "out.jsonl")
    with (tmp_path / "out.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    (line,) = (tmp_path / "out.jsonl").read_text().splitlines()
    assert json.loads(row["value"])["note"] == json.loads(line)["value"]["note"] == note


def test_a_file_that_is_there_is_only_replaced_on_request(directory, tmp_path):
    target = tmp_path / "out.csv"
    target.write_text("mine")
    with pytest.raises(UserError, match=r"exists.*pass --force"):
        export(find(str(directory)), "visits/visit", target)
    assert target.read_text() == "mine"
    export(find(str(directory)), "visits/visit", target, force=True)
    assert target.read_text().startswith("key_group,key,value\n")


def test_a_file_that_appears_meanwhile_is_not_replaced(directory, tmp_path):
    target = tmp_path / "out.csv"
    with pytest.raises(UserError, match="exists"):
        export(
            find(str(directory)),
            "visits/visit",
            target,
            progress=lambda *_: target.write_text("mine") and None,
        )
    assert target.read_text() == "mine"
    assert left_in(tmp_path) == ["apart", "out.csv"]


def test_an_unknown_ending_is_refused(directory, tmp_path):
    with pytest.raises(UserError, match=r"end it in \.parquet, \.jsonl, \.csv"):
        export(find(str(directory)), "visits/visit", tmp_path / "out.xlsx")


@pytest.mark.parametrize("ending", export_module.FORMS)
def test_a_directory_that_does_not_exist_is_named(directory, tmp_path, ending):
    with pytest.raises(LocalDiskError, match="cannot write the file of an export"):
        export(find(str(directory)), "visits/visit", tmp_path / "gone" / f"out{ending}")


@pytest.mark.parametrize("ending", export_module.FORMS)
def test_an_interrupted_export_leaves_no_file(directory, tmp_path, ending):
    def interrupt(_done: int, _all: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(find(str(directory)), "visits/visit", tmp_path / f"out{ending}", progress=interrupt)
    assert left_in(tmp_path) == ["apart"]


def test_a_full_disk_leaves_no_file(large, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    found = find(str(large))
    size = max(file.size for file in found.snapshot.manifest.files)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 300_000, before[1]))
    try:
        with pytest.raises(LocalDiskError, match=r"cannot write.*nothing of it is left; make room"):
            export(found, "visits/visit", out / "out.jsonl")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert left_in(out) == []


def test_damaged_state_is_not_exported(directory, tmp_path):
    manifest = find(str(directory)).snapshot.manifest
    (directory / manifest.operators["visits"].subtasks[1].files[0].key).unlink()
    with pytest.raises(CorruptState, match="is missing"):
        export(find(str(directory)), "visits/visit", tmp_path / "out.csv")
    assert left_in(tmp_path) == ["apart"]


def test_a_state_without_rows_is_a_file_without_rows(tmp_path):
    with SmallJob(tmp_path / "dir", tmp_path / "scratch") as job:
        job.visit([1])
        job.checkpoint()
    target = tmp_path / "out.parquet"
    done = export(find(str(tmp_path / "dir")), "visits/_timers", target)
    assert done.rows == 0
    assert pq.read_schema(target).field("time").type == pa.int64()
