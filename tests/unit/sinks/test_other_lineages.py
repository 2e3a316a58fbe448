"""Output of another lineage in the folder: refused where readers would see rows twice."""

from pathlib import Path
from typing import Any, cast

import pyarrow.parquet as pq
import pytest

from moorage.api.file_sink import FileSink
from moorage.api.foreach_sinks import ForeachCheckpoint
from moorage.api.graph import SinkNode
from moorage.sinks.file_names import OutputConflict
from moorage_state.errors import UserError
from moorage_state.stores import MemoryStore

from .test_driver_side import Job

KEEP = {"other_lineages": "keep"}


@pytest.fixture(params=["rename", "list"])
def lineage(request, tmp_path):
    """Makes jobs that write to one folder, each with a lineage of its own."""
    names: list[str] = []

    def make(folder="out", **options):
        names.append(f"{tmp_path.name}-{len(names)}")
        sink = FileSink(tmp_path / folder, commit=request.param, **options)
        return Job(sink, MemoryStore.named(names[-1]))

    yield make
    for name in names:
        MemoryStore.forget(name)


def rows_of(job):
    tables = (pq.read_table(path) for path in job.sink.files())
    return sorted(n for table in tables for n in table.column("n").to_pylist())


def ran(job, *numbers, origin=None):
    """The job after a start and a checkpoint for each number, and its last manifest."""
    job.start(origin)
    for number in numbers:
        manifest = job.complete(job.stage(number))
    return manifest


def tree(folder):
    return sorted((str(p), p.stat().st_mtime_ns) for p in Path(folder).rglob("*") if p.is_file())


def test_deleting_the_checkpoints_and_keeping_the_output_is_refused_and_touches_nothing(lineage):
    old, new = lineage(), lineage()
    ran(old, 1, 2)
    before = tree(old.sink.path)
    with pytest.raises(OutputConflict) as refusal:
        new.start()
    words = str(refusal.value)
    assert f" lineage={new.writer.lineage} other_lineage={old.writer.lineage} files=2; " in words
    assert "this one begins empty: " in words
    assert old.sink.path in words
    assert "name the checkpointDir of that lineage again" in words
    assert "move the folder away" in words
    assert tree(old.sink.path) == before
    assert not [entry for entry in new.writer.entries if type(entry).__name__ == "Run"]


def test_all_sinks_that_refuse_are_named_at_once(lineage, tmp_path):
    ran(lineage("one"), 1)
    ran(lineage("two"), 1)
    new = lineage("one")
    other = FileSink(tmp_path / "two", commit=new.sink.commit)
    free = FileSink(tmp_path / "free", commit=new.sink.commit)
    nodes = [SinkNode(uid, cast("Any", None), sink) for uid, sink in (("b", other), ("c", free))]
    new.graph.sinks += nodes
    with pytest.raises(OutputConflict, match=r"sinks=\['b', 'out'\]") as refusal:
        new.start()
    assert new.sink.path in str(refusal.value)
    assert other.path in str(refusal.value)
    assert not Path(free.path).exists()


class Refuses(ForeachCheckpoint):
    """A sink with a reason of its own not to begin."""

    def admit(self, _lineage, _origin):
        raise TopicTaken("clicks", 3)


class TopicTaken(UserError):
    """Made of something else than one text."""

    code = "topic_taken"

    def __init__(self, topic, partitions):
        super().__init__(f"the topic is taken: topic={topic} partitions={partitions}")


@pytest.mark.parametrize("first", ["a", "z"])
def test_a_conflict_of_output_is_told_beside_sinks_that_refuse_for_reasons_of_their_own(
    lineage, first
):
    ran(lineage("one"), 1)
    new = lineage("one")
    strange = SinkNode(first, cast("Any", None), cast("Any", Refuses(print)))
    new.graph.sinks.insert(0, strange)
    with pytest.raises(OutputConflict) as refusal:
        new.start()
    assert f"sink={first}: the topic is taken: topic=clicks partitions=3" in str(refusal.value)
    assert new.sink.path in str(refusal.value)


def test_sinks_that_all_refuse_for_reasons_of_their_own_are_all_named(lineage):
    new = lineage()
    refusing = cast("Any", Refuses(print))
    new.graph.sinks[:] = [SinkNode(uid, cast("Any", None), refusing) for uid in "ab"]
    with pytest.raises(UserError, match=r"sinks=\['a', 'b'\]") as refusal:
        new.start()
    assert type(refusal.value) is UserError


def test_it_is_a_refusal_that_no_other_start_cures():
    assert OutputConflict.code == "output_conflict"
    assert issubclass(OutputConflict, UserError)


def test_an_emptied_folder_is_a_new_beginning(lineage):
    old, new = lineage(), lineage("moved")
    ran(old, 1)
    Path(old.sink.path).rename(Path(old.sink.path).with_name("elsewhere"))
    new.sink.path = old.sink.path
    ran(new, 1)
    assert rows_of(new) == [1]


def test_the_lineage_itself_goes_on_whatever_else_is_in_the_folder(lineage):
    old, new = lineage(), lineage(**KEEP)
    first = ran(old, 1)
    ran(new, 5)
    assert old.start(first) == []
    assert rows_of(old) == [1, 5]


def test_an_empty_start_of_the_lineage_itself_takes_its_own_output_back(lineage):
    job = lineage()
    ran(job, 1, 2)
    (sentence,) = job.start(None, explicit=True)
    assert "files=2" in sentence
    assert rows_of(job) == []


def test_several_jobs_write_into_one_folder_where_that_is_said(lineage):
    old, new = lineage(), lineage(**KEEP)
    ran(old, 1)
    assert new.start() == []
    ran(new, 5)
    assert rows_of(new) == [1, 5]


def test_what_was_kept_once_is_not_asked_about_when_the_lineage_goes_on(lineage):
    old, new = lineage(), lineage(**KEEP)
    ran(old, 1)
    manifest = ran(new, 5)
    new.sink.other_lineages = "refuse"
    assert new.start(manifest) == []


def test_a_lineage_that_begins_where_another_ended_goes_on_in_its_folder(lineage):
    old, new = lineage(), lineage()
    last = ran(old, 1, 2)
    ran(new, 3, origin=last)
    assert rows_of(new) == [1, 2, 3]


def test_it_goes_on_after_a_crash_before_its_first_checkpoint(lineage):
    old, new = lineage(), lineage()
    last = ran(old, 1, 2)
    new.start(last)
    new.stage(3)
    ran(new, 3, origin=last)
    assert rows_of(new) == [1, 2, 3]


def test_a_lineage_that_begins_before_the_end_of_the_other_is_refused(lineage):
    old, new = lineage(), lineage()
    first = ran(old, 1)
    old.complete(old.stage(2))
    with pytest.raises(OutputConflict, match=r"begins at epoch 1 of it, .* files=1; "):
        new.start(first)


def test_output_of_a_later_run_of_the_other_lineage_is_later(lineage):
    """Epochs of a run that began again have numbers that were there before."""
    old, new = lineage(), lineage()
    first = ran(old, 1)
    second = old.complete(old.stage(2))
    old.start(first, explicit=True)
    old.epoch = 1
    old.complete(old.stage(3))
    with pytest.raises(OutputConflict, match="files=1; "):
        new.start(second)


def test_an_empty_start_of_a_lineage_that_began_where_another_ended_is_refused(lineage):
    old, new = lineage(), lineage()
    ran(new, 3, origin=ran(old, 1, 2))
    with pytest.raises(OutputConflict, match="begins empty"):
        new.start(None, explicit=True)
    assert rows_of(new) == [1, 2, 3]


def test_lineages_follow_one_another_in_one_folder(lineage):
    first, second, third = lineage(), lineage(), lineage()
    ran(third, 3, origin=ran(second, 2, origin=ran(first, 1)))
    assert rows_of(third) == [1, 2, 3]


def test_a_third_lineage_that_begins_with_the_first_one_is_refused(lineage):
    first, second, third = lineage(), lineage(), lineage()
    point = ran(first, 1)
    ran(second, 2, origin=point)
    with pytest.raises(OutputConflict) as refusal:
        third.start(point)
    assert f"begins with a point of {first.writer.lineage}" in str(refusal.value)
    assert f"other_lineage={second.writer.lineage} files=1" in str(refusal.value)


def test_output_that_its_owner_took_away_or_a_restore_took_back_is_not_there_twice(lineage):
    old, new = lineage(), lineage()
    ran(old, 1)
    old.start(None, explicit=True)
    ran(new, 1)
    assert rows_of(new) == [1]


def test_files_that_no_job_wrote_are_told_of_and_stay(tmp_path, lineage):
    job = lineage()
    if job.sink.commit == "list":
        pytest.skip("readers of a list see nothing that is not on it")
    seed = tmp_path / "out" / "day=1" / "seed.parquet"
    seed.parent.mkdir(parents=True)
    seed.touch()
    (sentence,) = job.start()
    assert sentence == (
        f"the output folder has files that no job wrote, and readers see them beside the output: "
        f"directory={tmp_path}/out files=1 first={seed}"
    )
    manifest = job.complete(job.stage(1))
    assert job.start(manifest) == []
    assert seed.exists()


def test_another_word_than_refuse_and_keep_is_an_error(tmp_path):
    with pytest.raises(UserError, match="'refuse' or 'keep': other_lineages='append'"):
        FileSink(tmp_path, other_lineages=cast("Any", "append"))
