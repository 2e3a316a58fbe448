"""The file sink: staged per attempt, published once per checkpoint, taken back and brought back."""

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from moorage.api.file_sink import FileSink
from moorage.api.sinks import LiveOutput, SinkRestore, SinkRetire, StageId
from moorage.sinks import directory, file_writer
from moorage_state.errors import Bug, CorruptState, Fenced, LocalDiskError, UserError

SCHEMA = pa.schema([("n", pa.int64())])
LINEAGE = "0f3c"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def sink(out: Path) -> FileSink:
    return FileSink(out)


def stage(sink, *numbers, epoch=1, lineage=LINEAGE, run="f1r0", producer="count", subtask=0):
    """Committables of one attempt that wrote `numbers`."""
    writer = sink.open_writer(StageId(lineage, run, epoch, producer, subtask), SCHEMA)
    if numbers:
        writer.write(pa.RecordBatch.from_pydict({"n": list(numbers)}, schema=SCHEMA))
    return writer.finish()


def test_the_names_of_all_folders_above_a_staged_file_are_synced_once_each(monkeypatch, out):
    synced: list[Path] = []
    monkeypatch.setattr(directory, "_sync", synced.append)
    area = directory.StagingFolder(out, StageId(LINEAGE, "f1r0", 1, "count", 0))
    own = out / "_staging" / LINEAGE / "f1r0"
    for file in ("p=1/a.parquet", "b.parquet"):
        path = area.create(file)
        path.touch()
        area.keep(file, path)
    above = [out / "_staging" / LINEAGE, out / "_staging", out]
    first = [own / "p=1" / "a.parquet", own / "p=1", own, *above]
    assert synced == [*first, own / "b.parquet", own]


def restore(sink, *history, items=(), run="f9r0", lineage=LINEAGE):
    """Go to the last checkpoint of `history`, which covers `items`."""
    return sink.restore(SinkRestore(lineage, run, history, list(items)))


def published(sink):
    """What a reader finds who knows nothing of us."""
    if not Path(sink.path).exists():
        return []
    table = ds.dataset(sink.path, format="parquet").to_table()
    return sorted(table.column("n").to_pylist()) if table.num_rows else []


class Ended(BaseException):
    """The process ends here."""


def crash_at(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, at: int = 0) -> None:
    """The call number `at` of `owner.name` raises instead, like a process that ends there."""
    original: Callable[..., Any] = getattr(owner, name)
    calls = iter(range(1000))

    def crashing(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == at:
            raise Ended
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, crashing)


def test_staged_rows_are_seen_once_their_checkpoint_is_published(sink):
    items = stage(sink, 1, 2) + stage(sink, 3, subtask=1)
    assert published(sink) == []
    assert sink.publish(LINEAGE, 7, items) == 3
    assert published(sink) == [1, 2, 3]


def test_names_tell_where_a_file_comes_from(sink):
    (item,) = stage(sink, 1, epoch=12, run="f3r1", producer="per-user.v2", subtask=4)
    assert item["file"].startswith(f"part-{LINEAGE}-f3r1-000000000012-per-user.v2-00004-")
    assert item["staged"] == f"_staging/{LINEAGE}/f3r1/{item['file']}"
    assert item["bytes"] == (Path(sink.path) / item["staged"]).stat().st_size
    assert json.loads(json.dumps(item)) == item


def test_attempts_of_one_subtask_never_share_a_file(sink):
    assert stage(sink, 1)[0]["file"] != stage(sink, 1)[0]["file"]


def test_publishing_again_changes_nothing(sink):
    items = stage(sink, 1, 2)
    for _ in range(3):
        assert sink.publish(LINEAGE, 7, items) == 2
        assert published(sink) == [1, 2]


def test_a_checkpoint_without_output_leaves_no_trace(sink, out):
    assert stage(sink) == []
    assert sink.publish(LINEAGE, 7, []) == 0
    assert restore(sink, 7) == []
    assert not out.exists()


def test_an_aborted_attempt_leaves_no_file(sink, out):
    writer = sink.open_writer(StageId(LINEAGE, "f1r0", 1, "count", 0), SCHEMA)
    writer.abort()
    assert not out.exists()
    writer.write(pa.RecordBatch.from_pydict({"n": [1]}, schema=SCHEMA))
    writer.write(pa.RecordBatch.from_pydict({"n": []}, schema=SCHEMA))
    writer.finish()
    writer.abort()
    assert not list(out.rglob("*.parquet"))


@pytest.mark.parametrize(
    ("owner", "name"),
    [(Path, "rename"), (directory, "_write_log"), (directory, "_rename"), (directory, "_sync")],
)
@pytest.mark.parametrize("at", range(6))
def test_a_crash_anywhere_in_publishing_is_made_good_by_a_restore(
    sink, monkeypatch, owner, name, at
):
    sink.publish(LINEAGE, 6, stage(sink, 0))
    items = stage(sink, 1) + stage(sink, 2, subtask=1) + stage(sink, 3, subtask=2)
    with monkeypatch.context() as patch:
        crash_at(patch, owner, name, at)
        with contextlib.suppress(Ended):
            sink.publish(LINEAGE, 7, items)
    assert restore(sink, 6, 7, items=items) == []
    assert published(sink) == [0, 1, 2, 3]
    assert not list(Path(sink.path).glob("_staging/**/*.parquet"))


@pytest.mark.parametrize(
    ("owner", "name"),
    [(Path, "rename"), (directory, "_write_log"), (directory, "_rename"), (directory, "_sync")],
)
@pytest.mark.parametrize("at", range(6))
def test_a_crash_anywhere_in_publishing_leaves_nothing_for_an_older_restore(
    sink, monkeypatch, owner, name, at
):
    before = stage(sink, 0)
    sink.publish(LINEAGE, 6, before)
    items = stage(sink, 1) + stage(sink, 2, subtask=1) + stage(sink, 3, subtask=2)
    with monkeypatch.context() as patch:
        crash_at(patch, owner, name, at)
        with contextlib.suppress(Ended):
            sink.publish(LINEAGE, 7, items)
    restore(sink, 6, items=before)
    assert published(sink) == [0]
    sink.publish(LINEAGE, 8, stage(sink, 4))
    assert published(sink) == [0, 4]


@pytest.mark.parametrize(("owner", "name"), [(Path, "rename"), (directory, "_rename")])
@pytest.mark.parametrize("at", range(1, 4))
def test_a_crash_between_log_and_rename_loses_nothing_by_going_back_and_forward(
    sink, monkeypatch, owner, name, at
):
    items = stage(sink, 1) + stage(sink, 2, subtask=1) + stage(sink, 3, subtask=2)
    with monkeypatch.context() as patch:
        crash_at(patch, owner, name, at if owner is Path else 0)
        with pytest.raises(Ended):
            sink.publish(LINEAGE, 7, items)
    restore(sink, run="f1r1")
    assert published(sink) == []
    assert not list(Path(sink.path).glob("_staging/**/*.parquet"))
    restore(sink, 7, items=items, run="f1r2")
    assert published(sink) == [1, 2, 3]


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (Path, "rename"),
        (directory, "_sync"),
        (directory, "_move"),
        (directory, "_write_log"),
        (shutil, "rmtree"),
    ],
)
@pytest.mark.parametrize("at", range(7))
@pytest.mark.parametrize("other_way", [False, True])
def test_a_crash_anywhere_in_a_restore_is_made_good_by_the_next(
    sink, monkeypatch, owner, name, at, other_way
):
    items = {6: stage(sink, 0), 7: stage(sink, 1) + stage(sink, 2, subtask=1)}
    rows = {(6,): [0], (6, 7): [0, 1, 2], (6, 9): [0, 3, 4]}
    sink.publish(LINEAGE, 6, items[6])
    sink.publish(LINEAGE, 7, items[7])
    restore(sink, 6, items=items[6], run="f1r1")
    items[9] = stage(sink, 3, run="f1r1") + stage(sink, 4, run="f1r1", subtask=1)
    sink.publish(LINEAGE, 9, items[9])
    stage(sink, 5, run="f1r1")
    with monkeypatch.context() as patch:
        crash_at(patch, owner, name, at)
        with contextlib.suppress(Ended):
            restore(sink, 6, 7, items=items[7], run="f1r2")
    seen = published(sink)
    assert any(set(seen) <= set(numbers) for numbers in rows.values())
    for history in [(6, 9), (6,), (6, 7)] if other_way else [(6, 7), (6,), (6, 9)]:
        restore(sink, *history, items=items[history[-1]], run="f1r3")
        assert published(sink) == rows[history]


def test_a_restore_publishes_what_its_checkpoint_holds(sink):
    items = stage(sink, 1)
    assert restore(sink, 7, items=items) == []
    assert published(sink) == [1]


def test_going_back_takes_back_what_was_published_later_and_says_so(sink, out):
    first = stage(sink, 1)
    sink.publish(LINEAGE, 7, first)
    sink.publish(LINEAGE, 8, stage(sink, 2) + stage(sink, 3))
    sink.publish(LINEAGE, 10, stage(sink, 4))
    (sentence,) = restore(sink, 7, items=first)
    assert sentence == (
        "took back published files that the restore point does not cover: "
        f"directory={out} files=3 moved_to={out}/_retracted/{LINEAGE}"
    )
    assert published(sink) == [1]
    assert restore(sink, 7, items=first) == []


def test_going_forward_again_brings_back_what_was_taken_back_and_says_so(sink, out):
    items = {n: stage(sink, n, n * 10) for n in (1, 2, 3)}
    for n, staged in items.items():
        sink.publish(LINEAGE, n, staged)
    restore(sink, 1, items=items[1])
    assert published(sink) == [1, 10]
    (sentence,) = restore(sink, 1, 2, 3, items=items[3], run="f9r1")
    assert sentence == (
        "brought back files that an earlier restore took back: "
        f"directory={out} files=2 moved_from={out}/_retracted/{LINEAGE}"
    )
    assert published(sink) == [1, 2, 3, 10, 20, 30]
    assert restore(sink, 1, 2, 3, items=items[3], run="f9r2") == []


def test_another_branch_does_not_bring_back_what_its_history_lacks(sink):
    items = {n: stage(sink, n) for n in (1, 2)}
    for n, staged in items.items():
        sink.publish(LINEAGE, n, staged)
    restore(sink, 1, items=items[1], run="f1r1")
    items[4] = stage(sink, 4, run="f1r1")
    sink.publish(LINEAGE, 4, items[4])
    assert restore(sink, 1, 4, items=items[4], run="f1r2") == []
    assert published(sink) == [1, 4]
    assert len(restore(sink, 1, 2, items=items[2], run="f1r3")) == 2
    assert published(sink) == [1, 2]
    assert len(restore(sink, 1, 4, items=items[4], run="f1r4")) == 2
    assert published(sink) == [1, 4]


def test_a_file_that_two_checkpoints_list_stays_with_either(sink):
    """The log write of 7 was in doubt, so 8 covers its output as well."""
    seventh = stage(sink, 1)
    eighth = seventh + stage(sink, 2)
    sink.publish(LINEAGE, 8, eighth)
    restore(sink, 7, items=seventh)
    assert published(sink) == [1]
    restore(sink, 8, items=eighth, run="f9r1")
    assert published(sink) == [1, 2]
    restore(sink, 7, 9, run="f9r2")
    assert published(sink) == [1]


def test_starting_empty_takes_everything_of_the_lineage_back(sink):
    second = stage(sink, 2)
    sink.publish(LINEAGE, 1, stage(sink, 1))
    sink.publish(LINEAGE, 2, second)
    assert len(restore(sink)) == 1
    assert published(sink) == []
    restore(sink, 1, 2, items=second, run="f9r1")
    assert published(sink) == [1, 2]


def test_a_driver_that_wakes_up_in_a_restore_leaves_its_successors_output(sink, out):
    first = stage(sink, 1, run="f2r9")
    sink.publish(LINEAGE, 1, first)
    sink.publish(LINEAGE, 2, stage(sink, 2, run="f2r9"))
    sink.publish(LINEAGE, 3, stage(sink, 3, run="f10r0"))
    for run in ("f1r0", "f2r9", "f2r10", "f10r0"):
        stage(sink, 9, run=run)
    (out / "_staging" / LINEAGE / "not-a-run").mkdir()
    (sentence,) = restore(sink, 1, items=first, run="f2r10")
    assert "files=1 " in sentence
    assert published(sink) == [1, 3]
    left = {path.name for path in (out / "_staging" / LINEAGE).iterdir()}
    assert left == {"f2r10", "f10r0", "not-a-run"}
    assert len(list(out.glob("_staging/**/*.parquet"))) == 2


def test_a_restore_has_a_run(sink):
    with pytest.raises(Bug, match="not a run token: run=7"):
        restore(sink, run="7")


def test_staged_rows_of_a_lost_run_are_dropped(sink, out):
    stage(sink, 1, run="f1r0")
    first = stage(sink, 2, run="f1r1")
    restore(sink, 7, items=first, run="f2r0")
    assert published(sink) == [2]
    assert not list((out / "_staging" / LINEAGE).iterdir())


def test_other_lineages_and_other_peoples_files_stay(sink, out):
    other = LINEAGE + "-2"
    sink.publish(other, 9, stage(sink, 10, lineage=other))
    theirs = stage(sink, 11, lineage=other)
    pq.write_table(pa.table({"n": [12]}), out / f"part-{LINEAGE}-by-hand.parquet")
    (out / "README").write_text("mine")
    sink.publish(LINEAGE, 1, stage(sink, 1))
    restore(sink)
    (out / "README").unlink()
    assert published(sink) == [10, 12]
    sink.publish(other, 10, theirs)
    assert published(sink) == [10, 11, 12]


def test_a_lost_log_takes_nothing_back(sink, out):
    """Somebody cleaned the directories that start with an underscore."""
    first = stage(sink, 1)
    sink.publish(LINEAGE, 7, first)
    sink.publish(LINEAGE, 8, stage(sink, 2))
    shutil.rmtree(out / "_moorage_log")
    assert restore(sink, 7, items=first) == []
    assert published(sink) == [1, 2]


def test_a_missing_staged_file_is_found_before_anything_is_published(sink, out):
    items = stage(sink, 1) + stage(sink, 2, subtask=1)
    (out / items[1]["staged"]).unlink()
    with pytest.raises(CorruptState, match="neither staged nor published") as caught:
        sink.publish(LINEAGE, 7, items)
    assert caught.value.path == str(out / items[1]["file"])
    assert "restore an older checkpoint" in caught.value.advice
    assert published(sink) == []
    assert not (out / "_moorage_log").exists()


def test_a_restore_that_misses_output_changes_nothing(sink, out):
    sink.publish(LINEAGE, 7, stage(sink, 1))
    lost = stage(sink, 2)
    (out / lost[0]["staged"]).unlink()
    stage(sink, 3)
    before = sorted(out.rglob("*"))
    with pytest.raises(CorruptState):
        restore(sink, 8, items=lost)
    assert sorted(out.rglob("*")) == before


def test_output_that_a_restore_dropped_unlisted_is_missed(sink):
    """Nothing says that this checkpoint's output was ever visible."""
    items = stage(sink, 1)
    restore(sink)
    with pytest.raises(CorruptState):
        restore(sink, 7, items=items)


def test_readers_may_move_published_files_away(sink, out, tmp_path):
    first, second = stage(sink, 1), stage(sink, 2) + stage(sink, 3)
    sink.publish(LINEAGE, 7, first)
    sink.publish(LINEAGE, 8, second)
    (out / first[0]["file"]).unlink()
    (out / second[0]["file"]).rename(tmp_path / "mine.parquet")
    assert sink.publish(LINEAGE, 8, second) == 2
    assert restore(sink, 7, 8, items=second) == []
    assert published(sink) == [3]
    assert len(restore(sink, 7, items=first, run="f9r1")) == 1
    assert published(sink) == []
    shutil.rmtree(out / "_retracted")
    assert restore(sink, 7, 8, items=second, run="f9r2") == []
    assert published(sink) == []


def test_a_lost_log_does_not_lose_what_was_taken_back(sink, out):
    items = stage(sink, 1)
    sink.publish(LINEAGE, 7, items)
    restore(sink)
    shutil.rmtree(out / "_moorage_log")
    restore(sink, 7, items=items, run="f9r1")
    assert published(sink) == [1]


def test_the_log_lists_files_by_checkpoint(sink, out):
    items = stage(sink, 1)
    sink.publish(LINEAGE, 7, items)
    (entry,) = (out / "_moorage_log" / LINEAGE).iterdir()
    assert entry.name == "00000000000000000007.json"
    assert json.loads(entry.read_text()) == {
        "format": 1,
        "checkpoint": 7,
        "files": [items[0]["file"]],
    }


def test_retiring_keeps_few_records_however_long_it_runs(sink, out):
    history: tuple[int, ...] = ()
    for n in range(1, 60):
        items = stage(sink, n, epoch=n)
        stage(sink, 1000 + n, epoch=n)  # an attempt that lost
        sink.publish(LINEAGE, n, items)
        history = (*history, n)
        sink.retire(SinkRetire(LINEAGE, "f1r0", n, n, (LiveOutput(history, items),)))
        assert not list((out / "_staging" / LINEAGE / "f1r0").iterdir())
    assert len(list((out / "_moorage_log" / LINEAGE).iterdir())) <= 21
    assert published(sink) == list(range(1, 60))
    restore(sink)
    assert published(sink) == []


def test_retiring_remembers_that_a_reader_took_what_a_live_point_covers(sink, out):
    history: tuple[int, ...] = ()
    live = []
    for n in range(1, 25):
        items = stage(sink, n, epoch=n)
        sink.publish(LINEAGE, n, items)
        history = (*history, n)
        live.append(LiveOutput(history, items))
    (out / live[0].committables[0]["file"]).unlink()
    sink.retire(SinkRetire(LINEAGE, "f1r0", 24, 24, tuple(live)))
    assert len(list((out / "_moorage_log" / LINEAGE).iterdir())) == 1
    restore(sink, 1, items=live[0].committables)
    assert published(sink) == []


def test_what_was_taken_back_is_looked_at_after_a_restore_and_then_at_ever_larger_distances(
    sink, out
):
    items = {n: stage(sink, n, epoch=n) for n in (63, 64, 65)}
    for n, staged in items.items():
        sink.publish(LINEAGE, n, staged)
    restore(sink, 63, items=items[63])

    def taken_back(at: int, *live: tuple[int, ...]) -> list[int]:
        outputs = tuple(LiveOutput(history, []) for history in live)
        sink.retire(SinkRetire(LINEAGE, "f9r0", at, at, outputs))
        left = (out / "_retracted" / LINEAGE).glob("*.parquet")
        return sorted(n for path in left for n in pq.read_table(path).column("n").to_pylist())

    assert taken_back(66, (63, 64), (63, 66)) == [64]
    # At 68 it is time again, and that one failed.
    assert taken_back(67, (63, 66, 67)) == [64]
    assert taken_back(69, (63, 66, 67, 69)) == []
    restore(sink, 63, items=items[63], run="f10r0")
    assert published(sink) == [63]


def test_retiring_never_touches_rows_of_epochs_that_no_checkpoint_covers_yet(sink, out):
    later = stage(sink, 1, epoch=2) + stage(sink, 2, epoch=1, run="f2r0")
    waiting = stage(sink, 3, epoch=1)
    sink.retire(SinkRetire(LINEAGE, "f1r0", 1, 1, (LiveOutput((1,), waiting),)))
    assert all((out / item["staged"]).exists() for item in later + waiting)


def test_a_replaced_driver_neither_restores_nor_retires(sink, out):
    first = stage(sink, 1)
    sink.publish(LINEAGE, 1, first)
    restore(sink, run="f2r0")
    before = sorted(out.rglob("*"))
    with pytest.raises(Fenced, match="a newer run took over the output"):
        restore(sink, 1, items=first, run="f1r0")
    sink.retire(SinkRetire(LINEAGE, "f1r0", 9, 9, ()))
    assert sorted(out.rglob("*")) == before


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("/data/out", "/data/out"),
        ("file:///data/out", "/data/out"),
        ("/data/out/", "/data/out"),
        (Path("/data/out"), "/data/out"),
        ("out", "out"),
        ("./in/../out/", "out"),
    ],
)
def test_a_sink_writes_to_a_local_directory(given, path):
    assert FileSink(given).path == path


@pytest.mark.parametrize(
    "given", ["", "file:/x", "file://host/x", "hdfs://a/b", "s3a://b", "~/out"]
)
def test_a_sink_refuses_what_is_no_path_and_no_store(given):
    with pytest.raises(
        UserError, match=f"file:///absolute/path and s3://bucket/prefix: path={given}"
    ):
        FileSink(given)


def full(*_args: Any) -> None:
    raise OSError(28, "No space left on device")


def test_a_full_disk_leaves_no_half_file(sink, out, monkeypatch):
    monkeypatch.setattr(file_writer, "_GROUP_BYTES", 1)  # no row waits: the file is made
    writer = sink.open_writer(StageId(LINEAGE, "f1r0", 1, "count", 0), SCHEMA)
    writer.write(pa.RecordBatch.from_pydict({"n": [1]}, schema=SCHEMA))

    with monkeypatch.context() as patch:
        patch.setattr(pq.ParquetWriter, "close", full)
        with pytest.raises(LocalDiskError, match=f"path={out}.*No space left.*; check space and"):
            writer.abort()
    assert not list(out.rglob("*.parquet"))
    assert [path.name for path in out.iterdir()] == ["_staging"]


@pytest.mark.parametrize("commit", ["rename", "list"])
@pytest.mark.parametrize("form", ["parquet", "json"])
def test_what_the_disk_refuses_of_an_attempt_is_no_fault_of_the_jobs(
    tmp_path, monkeypatch, commit, form
):
    sink = FileSink(tmp_path / "out", form, commit=commit)
    rows = pa.RecordBatch.from_pydict({"n": [1]}, schema=SCHEMA)

    class Full:
        def __init__(self, *_args: Any, **_options: Any) -> None:
            self.refuse()

        def refuse(self, *_rows: Any) -> None:
            raise PermissionError(13, "Permission denied")

    class FullLater(Full):
        def __init__(self, path: Path, *_args: Any, **_options: Any) -> None:
            path.touch()

        write_batch = close = Full.refuse

    for writer in (Full, FullLater):
        monkeypatch.setattr(pq, "ParquetWriter", writer)
        monkeypatch.setattr(file_writer, "_JsonFile", writer)
        opened = sink.open_writer(StageId(LINEAGE, "f1r0", 1, "count", 0), SCHEMA)
        opened.write(rows)
        with pytest.raises(LocalDiskError, match=r"output file: path=/.*Permission denied"):
            opened.finish()
        with contextlib.suppress(LocalDiskError):
            opened.abort()


def test_a_place_where_nothing_can_be_staged_is_no_fault_of_the_jobs(sink, out, monkeypatch):
    out.write_text("no folder")
    with pytest.raises(LocalDiskError, match="could not make a folder for output: path=/"):
        stage(sink, 1)
    out.unlink()
    monkeypatch.setattr(directory, "_sync", full)
    with pytest.raises(LocalDiskError, match="could not sync an output file: path=/"):
        stage(sink, 1)


def test_what_the_disk_refuses_of_the_driver_is_told_as_that(sink, out, monkeypatch):
    items = stage(sink, 1)
    monkeypatch.setattr(directory, "_replace", full)
    for phase, call in {
        "publish": lambda: sink.publish(LINEAGE, 7, items),
        "restore": lambda: restore(sink, 7, items=items),
    }.items():
        with pytest.raises(LocalDiskError, match=f"could not {phase} output: path={out} .*No spa"):
            call()
    monkeypatch.setattr(directory, "_names", full)
    with pytest.raises(LocalDiskError, match=f"could not tidy output: path={out} "):
        sink.retire(SinkRetire(LINEAGE, "f1r0", 9, 9, ()))
    monkeypatch.setattr(directory, "_require_files", full)
    with pytest.raises(LocalDiskError, match=f"could not look at output: path={out} "):
        sink.check_covered(LINEAGE, items)
    monkeypatch.setattr(directory, "neighbours_in", full)
    with pytest.raises(LocalDiskError, match=f"could not look at output: path={out} "):
        sink.admit(LINEAGE, None)


class Output(RuleBasedStateMachine):
    """Epochs stage, checkpoints publish, crashes and restores of any checkpoint come at will."""

    sink: FileSink

    def __init__(self):
        super().__init__()
        shutil.rmtree(self.sink.path, ignore_errors=True)
        self.next = 0
        self.checkpoint = 0
        self.run = 0
        self.staged: list[tuple[int, dict[str, Any]]] = []
        self.expected: dict[tuple[int, ...], list[int]] = {(): []}
        self.committables: dict[tuple[int, ...], list[dict[str, Any]]] = {(): []}
        self.history: tuple[int, ...] = ()

    def restore(self):
        self.run += 1
        items = self.committables[self.history]
        restore(self.sink, *self.history, items=items, run=f"f1r{self.run}")

    @rule(attempts=st.integers(1, 2))
    def epoch(self, attempts):
        for _ in range(attempts):
            (item,) = stage(self.sink, self.next, epoch=self.next + 1, run=f"f1r{self.run}")
        self.staged.append((self.next, item))
        self.next += 1

    @rule(crash=st.none() | st.tuples(st.sampled_from(["_write_log", "_sync"]), st.integers(0, 3)))
    def complete(self, crash):
        """The checkpoint is complete; publishing it may be cut short and is then restored."""
        self.checkpoint += 1
        items = [item for _, item in self.staged]
        numbers = self.expected[self.history] + [n for n, _ in self.staged]
        self.staged = []
        self.history = (*self.history, self.checkpoint)
        self.expected[self.history], self.committables[self.history] = numbers, items
        with pytest.MonkeyPatch.context() as patch:
            if crash:
                crash_at(patch, directory, *crash)
            try:
                self.sink.publish(LINEAGE, self.checkpoint, items)
            except Ended:
                patch.undo()
                self.restore()

    @rule(
        data=st.data(),
        crash=st.none() | st.tuples(st.sampled_from(["_move", "_sync"]), st.integers(0, 5)),
    )
    def go(self, data, crash):
        """Back, forward or to another branch; a restore that is cut short may lead elsewhere."""
        self.staged = []
        self.history = data.draw(st.sampled_from(list(self.expected)))
        with pytest.MonkeyPatch.context() as patch:
            if crash:
                crash_at(patch, directory, *crash)
            try:
                self.restore()
            except Ended:
                patch.undo()
                self.history = data.draw(st.sampled_from(list(self.expected)))
                self.restore()

    @invariant()
    def readers_see_what_the_current_checkpoint_published(self):
        assert published(self.sink) == self.expected[self.history]


def test_readers_see_each_row_once_whatever_happens(sink):
    machine = type("Machine", (Output,), {"sink": sink})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=25, stateful_step_count=12, deadline=None)
    )
