"""The file sink: staged per attempt, published once per checkpoint, taken back on a rewind."""

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

from moorage import sinks
from moorage.sinks import FileSink, StageId
from moorage_state.errors import CorruptState, UserError

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


def published(sink):
    """What a reader finds who knows nothing of us."""
    if not Path(sink.path).exists():
        return []
    table = ds.dataset(sink.path, format="parquet").to_table()
    return sorted(table.column("n").to_pylist()) if table.num_rows else []


def crash_at(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, at: int = 0) -> None:
    """The call number `at` of `owner.name` raises instead, like a process that ends there."""
    original: Callable[..., Any] = getattr(owner, name)
    calls = iter(range(1000))

    def crashing(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == at:
            raise InterruptedError("the process ends here")
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
    assert sink.restore(LINEAGE, 7, []) == []
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
    [(Path, "rename"), (sinks, "_write_log"), (sinks, "_rename"), (sinks, "_sync")],
)
@pytest.mark.parametrize("at", range(6))
def test_a_crash_anywhere_in_publishing_is_made_good_by_a_restore(
    sink, monkeypatch, owner, name, at
):
    sink.publish(LINEAGE, 6, stage(sink, 0))
    items = stage(sink, 1) + stage(sink, 2, subtask=1) + stage(sink, 3, subtask=2)
    with monkeypatch.context() as patch:
        crash_at(patch, owner, name, at)
        with contextlib.suppress(InterruptedError):
            sink.publish(LINEAGE, 7, items)
    assert sink.restore(LINEAGE, 7, items) == []
    assert published(sink) == [0, 1, 2, 3]
    assert not list(Path(sink.path).glob("_staging/**/*.parquet"))


@pytest.mark.parametrize(
    ("owner", "name"),
    [(Path, "rename"), (sinks, "_write_log"), (sinks, "_rename"), (sinks, "_sync")],
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
        with contextlib.suppress(InterruptedError):
            sink.publish(LINEAGE, 7, items)
    sink.restore(LINEAGE, 6, before)
    assert published(sink) == [0]
    sink.publish(LINEAGE, 8, stage(sink, 4))
    assert published(sink) == [0, 4]


@pytest.mark.parametrize("name", ["unlink", "exists"])
@pytest.mark.parametrize("at", range(6))
def test_a_crash_anywhere_in_taking_back_is_made_good_by_the_next_restore(
    sink, monkeypatch, name, at
):
    first = stage(sink, 0)
    sink.publish(LINEAGE, 6, first)
    sink.publish(LINEAGE, 7, stage(sink, 1) + stage(sink, 2, subtask=1))
    sink.publish(LINEAGE, 9, stage(sink, 3))
    with monkeypatch.context() as patch:
        crash_at(patch, Path, name, at)
        with contextlib.suppress(InterruptedError):
            sink.restore(LINEAGE, 6, first)
    sink.restore(LINEAGE, 6, first)
    assert published(sink) == [0]


def test_a_restore_publishes_what_its_checkpoint_holds(sink):
    items = stage(sink, 1)
    assert sink.restore(LINEAGE, 7, items) == []
    assert published(sink) == [1]


def test_going_back_takes_back_what_was_published_later_and_says_so(sink):
    first = stage(sink, 1)
    sink.publish(LINEAGE, 7, first)
    sink.publish(LINEAGE, 8, stage(sink, 2) + stage(sink, 3))
    sink.publish(LINEAGE, 10, stage(sink, 4))
    (sentence,) = sink.restore(LINEAGE, 7, first)
    assert sentence.endswith(f"newer than the restore point: directory={sink.path} files=3")
    assert published(sink) == [1]
    assert sink.restore(LINEAGE, 7, first) == []


def test_starting_empty_takes_everything_of_the_lineage_back(sink):
    sink.publish(LINEAGE, 1, stage(sink, 1))
    sink.publish(LINEAGE, 2, stage(sink, 2))
    assert len(sink.restore(LINEAGE, None, [])) == 1
    assert published(sink) == []


def test_staged_rows_of_a_lost_run_are_dropped(sink, out):
    stage(sink, 1, run="f1r0")
    first = stage(sink, 2, run="f1r1")
    sink.restore(LINEAGE, 7, first)
    assert published(sink) == [2]
    assert not (out / "_staging" / LINEAGE).exists()


def test_other_lineages_and_other_peoples_files_stay(sink, out):
    other = LINEAGE + "-2"
    sink.publish(other, 9, stage(sink, 10, lineage=other))
    theirs = stage(sink, 11, lineage=other)
    pq.write_table(pa.table({"n": [12]}), out / f"part-{LINEAGE}-by-hand.parquet")
    (out / "README").write_text("mine")
    sink.publish(LINEAGE, 1, stage(sink, 1))
    sink.restore(LINEAGE, None, [])
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
    assert sink.restore(LINEAGE, 7, first) == []
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


def test_a_published_file_that_was_deleted_is_corrupt_state(sink, out):
    items = stage(sink, 1)
    sink.publish(LINEAGE, 7, items)
    (out / items[0]["file"]).unlink()
    with pytest.raises(CorruptState):
        sink.restore(LINEAGE, 7, items)


def test_the_log_lists_files_by_checkpoint(sink, out):
    items = stage(sink, 1)
    sink.publish(LINEAGE, 7, items)
    (entry,) = (out / "_moorage_log" / LINEAGE).iterdir()
    assert entry.name == "00000000000000000007.json"
    assert json.loads(entry.read_text()) == {
        "format": 0,
        "checkpoint": 7,
        "files": [items[0]["file"]],
    }


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("/data/out", "/data/out"),
        ("file:///data/out", "/data/out"),
        ("/data/out/", "/data/out"),
        (Path("/data/out"), "/data/out"),
    ],
)
def test_a_sink_writes_to_a_local_directory(given, path):
    assert FileSink(given).path == path


@pytest.mark.parametrize("given", ["out", "", "s3://bucket/out", "file:/x", "hdfs://a/b", "~/out"])
def test_a_sink_refuses_what_is_no_absolute_local_path(given):
    with pytest.raises(UserError, match=f"absolute local path or a file:// URL: path={given}"):
        FileSink(given)


def test_a_full_disk_leaves_no_half_file(sink, out, monkeypatch):
    writer = sink.open_writer(StageId(LINEAGE, "f1r0", 1, "count", 0), SCHEMA)
    writer.write(pa.RecordBatch.from_pydict({"n": [1]}, schema=SCHEMA))

    def full(_writer: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(pq.ParquetWriter, "close", full)
        with pytest.raises(OSError, match="No space left"):
            writer.abort()
    assert not list(out.rglob("*.parquet"))
    assert [path.name for path in out.iterdir()] == ["_staging"]


class Output(RuleBasedStateMachine):
    """Epochs stage, checkpoints publish, crashes and rewinds come when they like."""

    sink: FileSink

    def __init__(self):
        super().__init__()
        shutil.rmtree(self.sink.path, ignore_errors=True)
        self.next = 0
        self.checkpoint = 0
        self.staged: list[tuple[int, dict[str, Any]]] = []
        self.expected: dict[int, list[int]] = {0: []}
        self.committables: dict[int, list[dict[str, Any]]] = {0: []}
        self.current = 0

    @rule(attempts=st.integers(1, 2))
    def epoch(self, attempts):
        for _ in range(attempts):
            (item,) = stage(self.sink, self.next, epoch=self.next + 1)
        self.staged.append((self.next, item))
        self.next += 1

    @rule(crash=st.none() | st.tuples(st.sampled_from(["_write_log", "_sync"]), st.integers(0, 3)))
    def complete(self, crash):
        """The checkpoint is complete; publishing it may be cut short and is then restored."""
        self.checkpoint += 1
        items = [item for _, item in self.staged]
        numbers = self.expected[self.current] + [n for n, _ in self.staged]
        self.staged = []
        self.current = self.checkpoint
        self.expected[self.current], self.committables[self.current] = numbers, items
        with pytest.MonkeyPatch.context() as patch:
            if crash:
                crash_at(patch, sinks, *crash)
            try:
                self.sink.publish(LINEAGE, self.current, items)
            except InterruptedError:
                patch.undo()
                self.sink.restore(LINEAGE, self.current, items)

    @rule(data=st.data())
    def rewind(self, data):
        self.current = data.draw(st.sampled_from([c for c in self.expected if c <= self.current]))
        self.expected = {c: v for c, v in self.expected.items() if c <= self.current}
        self.staged = []
        named = self.current or None
        self.sink.restore(LINEAGE, named, self.committables[self.current])

    @invariant()
    def readers_see_what_the_current_checkpoint_published(self):
        assert published(self.sink) == self.expected[self.current]


def test_readers_see_each_row_once_whatever_happens(sink):
    machine = type("Machine", (Output,), {"sink": sink})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=25, stateful_step_count=12, deadline=None)
    )
