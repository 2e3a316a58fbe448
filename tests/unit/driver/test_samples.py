"""The sample that a driver keeps: what it says of itself, how large it gets, and when it ends."""

import json
import random
from typing import Any

import pytest

from moorage.cluster.board import Board, DriverAttempt
from moorage.driver.requests import Requests, SampleRequest
from moorage.driver.samples import (
    FEWEST_SEGMENTS,
    MOST_BYTES,
    MOST_ROWS,
    MOST_SEGMENTS,
    OutputSamples,
    Positions,
)
from moorage.driver.types import JobProgress
from moorage.engine.samples import SampledRows, Sampling
from moorage_state.errors import CorruptState

ALL = (1 << 64) - 1
WANTED = SampleRequest(10, ("at",), seconds=60.0)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def at(number: int, **more: int) -> dict[str, dict[str, Any]]:
    return {"in": {"/topic/0": number, **more}}


def rows(*hashes: int, limit: int = ALL) -> dict[str, SampledRows]:
    return {"out": SampledRows(limit, dict.fromkeys(hashes, 1))}


def many(seed: int) -> dict[str, SampledRows]:
    rng = random.Random(seed)
    return rows(*(rng.randrange(ALL) for _ in range(512)))


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def samples(clock):
    made = OutputSamples(clock=clock)
    made.ask(WANTED, 7, at(70))
    return made


def test_nobody_who_asks_gets_nothing(clock):
    samples = OutputSamples(clock=clock)
    assert (samples.sampling, samples.view) == (None, None)


def test_it_says_which_rows_came_up_to_which_position(samples):
    assert samples.sampling == Sampling(10, ("at",))
    samples.committed(rows(1, 2), at(80))
    samples.committed({}, at(80))
    samples.committed(rows(2, limit=99), at(90))
    view = samples.view
    assert (view.percent, view.except_columns, view.since_epoch) == (10, ("at",), 7)
    assert (view.start, view.limits, view.trouble) == (at(70), {"out": 99}, "")
    told = [(one.epochs, one.end, one.rows) for one in view.segments]
    assert told == [
        (1, at(80), {"out": {1: 1, 2: 1}}),
        (1, at(80), {"out": {}}),
        (1, at(90), {"out": {2: 1}}),
    ]
    assert samples.sampling.limits == {"out": 99}


def test_segments_are_put_together_where_there_would_be_many(samples):
    for epoch in range(1, 101):
        samples.committed(rows(epoch % 3), at(70 + epoch))
        view = samples.view
        assert len(view.segments) <= MOST_SEGMENTS
        assert sum(one.epochs for one in view.segments) == epoch
        assert view.segments[-1].end == at(70 + epoch)
        ends = [70]
        for one in view.segments:
            ends.append(one.end["in"]["/topic/0"])
            assert ends[-1] - ends[-2] == one.epochs
        assert sum(sum(one.rows["out"].values()) for one in view.segments) == epoch
    assert len(view.segments) > MOST_SEGMENTS / 2


def test_of_many_rows_those_of_the_lowest_hashes_stay(samples):
    for epoch in range(20):
        samples.committed({uid: many(epoch)["out"] for uid in ("out", "other")}, at(epoch))
    view, told = samples.view, {}
    for uid in ("out", "other"):
        told[uid] = [row for one in view.segments for row in one.rows[uid]]
        assert len(told[uid]) > MOST_ROWS / 8
        assert max(told[uid]) <= view.limits[uid] < ALL
    assert sum(map(len, told.values())) <= MOST_ROWS


def test_a_sink_that_gets_nearly_all_has_nearly_all_of_the_sample(samples):
    few = {f"few-{n}": rows(1, 2)["out"] for n in range(30)}
    for epoch in range(20):
        samples.committed({**few, **many(epoch)}, at(epoch))
    view = samples.view
    assert sum(len(one.rows["out"]) for one in view.segments) > MOST_ROWS / 4
    assert {view.limits[uid] for uid in few} == {ALL}
    assert all(one.rows["few-7"] for one in view.segments)


def test_a_report_of_the_largest_is_one_that_the_operator_reads(samples):
    wide = {f"/a topic of some length/{n}": 10**12 + n for n in range(500)}
    for epoch in range(40):
        samples.committed(many(epoch), {"in": dict(wide)})
        if epoch >= 2:
            since_the_first = sum(one.epochs for one in samples.view.segments[1:])
            assert since_the_first >= 2, "else it is never settled, see the operator's outputs.py"
    attempt = DriverAttempt(1, "job", "team", "uid", "file:///state")
    board = Board(attempt, Requests(), redact=lambda text: text)
    board(JobProgress(sample=samples.view))
    state = board.state().to_json()
    assert len(json.dumps(state)) < 200 * 1024
    assert state["sample"]["segments"]
    assert len(samples.view.segments) <= FEWEST_SEGMENTS


def test_positions_that_are_too_long_are_said_to_be(samples):
    samples.committed(rows(1), {"in": {str(n): n for n in range(MOST_BYTES // 10)}})
    assert samples.view.trouble == "the positions of its sources are too long"
    assert not samples.view.segments


def test_a_run_that_begins_anew_forgets_what_came_after_it(samples):
    samples.committed(rows(1, limit=9), at(80))
    samples.begin(5, at(50))
    view = samples.view
    assert (view.since_epoch, view.start, view.segments, view.limits) == (5, at(50), (), {})


def test_who_asks_again_keeps_what_there_is_and_who_asks_for_another_one_does_not(samples, clock):
    samples.committed(rows(1), at(80))
    clock.now = 59.0
    samples.ask(SampleRequest(10, ("at",), seconds=9.0), 8, at(80))
    assert samples.view.since_epoch == 7
    clock.now = 61.0
    samples.committed(rows(1), at(81))
    assert len(samples.view.segments) == 2
    samples.ask(SampleRequest(11, ("at",), seconds=9.0), 9, at(81))
    assert (samples.view.since_epoch, samples.view.segments) == (9, ())


def test_it_ends_by_itself(samples, clock):
    clock.now = 60.0
    samples.committed(rows(1), at(80))
    assert (samples.sampling, samples.view) == (None, None)


def test_one_that_stands_by_tells_it_for_as_long_as_it_does(clock):
    samples = OutputSamples(SampleRequest(10), clock)
    clock.now = 1e9
    samples.committed(rows(1), at(80))
    assert samples.view is not None


# -- positions ---------------------------------------------------------------------------------


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def offsets(root, batch, *lines):
    write(root / "offsets" / str(batch), "\n".join(["v1", "{}", *lines]))


def test_positions_are_the_numbers_of_offsets_and_hashes_of_all_else(tmp_path):
    positions = Positions(tmp_path, {"kafka": False, "rate": False, "own": False, "none": False})
    assert positions.after(-1) == {"kafka": {}, "rate": {}, "own": {}, "none": {}}
    kafka = '{"clicks":{"0":12,"1":34}}'
    offsets(tmp_path, 3, kafka, "17", '{"a":["x",1.5,true]}', "-")
    found = positions.after(3)
    assert found["kafka"] == {"/clicks/0": 12, "/clicks/1": 34}
    assert found["rate"] == {"": 17}
    assert found["own"].keys() == {"/a/0", "/a/1", "/a/2"}
    assert found["own"]["/a/1"] == 1.5
    assert isinstance(found["own"]["/a/0"], str)
    assert "x" not in found["own"]["/a/0"]
    assert isinstance(found["own"]["/a/2"], str)
    assert found["none"] == {}
    offsets(tmp_path, 4, kafka, "17", "no json", "-")
    assert positions.after(4)["own"].keys() == {""}


def test_the_position_in_a_directory_is_how_many_of_its_files_were_taken(tmp_path):
    """The number in Spark's offset counts batches, which two versions cut in other places."""
    positions = Positions(tmp_path, {"rate": False, "files": True})
    log = tmp_path / "sources" / "1"
    write(log / "0", "v1\n{}\n{}")
    offsets(tmp_path, 5, "3", '{"logOffset":0}')
    assert positions.after(5)["files"] == {"files": 2}
    write(log / "1.compact", "v1\n{}\n{}\n{}")
    offsets(tmp_path, 6, "3", '{"logOffset":1}')
    assert positions.after(5)["files"] == {"files": 2}, "of a batch that is known"
    assert positions.after(6)["files"] == {"files": 3}


def test_offsets_that_are_not_there_are_an_error_as_for_a_checkpoint(tmp_path):
    with pytest.raises(CorruptState, match="missing"):
        Positions(tmp_path, {"in": False}).after(2)
