"""Drivers as their pods run them, with Spark inside: one leads, and another stands by."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from moorage_testing.batches import KEYS, add_batch
from moorage_testing.jobs import kill_group, wait_until
from tests.spark.cluster.driver_home import DriverHome, DriverProcess

from moorage.engine.samples import row_hashes
from moorage_api.driver import SavepointInfo
from moorage_operator.decide.outputs import compared
from moorage_state.snapshots import Fence, Released, Run, SavepointStore

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]

JOB = Path(__file__).with_name("standby_job.py")


@pytest.fixture
def home(home):
    home.job = JOB
    return home


def stands_by(driver: DriverProcess, rows: int) -> None:
    driver.wait_for_rows(rows)
    assert driver.state().standby


def runs(driver: DriverProcess) -> bool:
    return driver.state().running_since is not None


def published(home: DriverHome) -> list[tuple[int, int]]:
    if not list(home.path.glob("out/*.parquet")):
        return []
    rows = pq.read_table(home.path / "out", columns=["key", "count"]).to_pydict()
    return sorted(zip(rows["key"], rows["count"], strict=True))


def called(home: DriverHome, kind: str) -> list[tuple[int, int]]:
    path = home.path / "calls"
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return sorted((int(key), int(n)) for found, key, n in lines if found == kind)


def expected(batches: int) -> list[tuple[int, int]]:
    return [(key, n + 1) for key in KEYS for n in range(2 * batches)]


def wait_for_output(home: DriverHome, batches: int, driver: DriverProcess) -> None:
    def all_there() -> bool:
        if driver.process.poll() is not None:
            pytest.fail(driver.log)
        return len(published(home)) >= 10 * batches

    wait_until(all_there, 400, "output")


def files(home: DriverHome) -> set[str]:
    """What a driver may write to besides its own folder."""
    places = ("checkpoints", "out")
    return {str(path) for place in places for path in (home.path / place).rglob("*")}


def asked_for_a_savepoint(first: DriverProcess) -> SavepointInfo:
    """And for other things, of which not all can be had."""
    assert first.ask("/savepoints", requestId="s-1", name="before").state != "Failed"
    savepoint = first.done("s-1").savepoint
    assert first.ask("/savepoints", requestId="s-1", name="before").savepoint == savepoint
    assert savepoint is not None
    assert SavepointStore(savepoint.path).digest() == savepoint.manifest_digest
    assert first.ask("/rescale", requestId="r-1", parallelism=4).state == "Pending"
    refused = first.done("r-1").error
    assert refused is not None
    assert refused.code == "restart_needed"
    assert 'moorage_fence{job="clicks",namespace="team"} 1.0' in first.call("GET", "/metrics")[1]
    return savepoint


def asked_the_wrong_one(standby: DriverProcess) -> None:
    assert standby.call("GET", "/metrics")[1] == ""
    assert standby.state().fence == 0
    standby.ask("/savepoints", requestId="s", name="none")
    refused = standby.done("s").error
    assert refused is not None
    assert "stands by" in refused.message


def asked_again(second: DriverProcess, savepoint: SavepointInfo) -> None:
    """For what a driver before has done."""
    again = second.ask("/savepoints", requestId="s-1", name="before")
    again = second.done("s-1") if again.savepoint is None else again
    assert again.savepoint is not None
    assert again.savepoint.manifest_digest == savepoint.manifest_digest
    second.ask("/savepoints", requestId="s-2", name="before")
    conflict = second.done("s-2").error
    assert conflict is not None
    assert conflict.code == "savepoint_name_conflict"
    assert second.ask("/promote", requestId="again").state != "Failed", "it leads already"


def test_a_driver_is_asked_and_ended_and_followed_by_one_that_stood_by(home):
    """One story for both, since each life of a driver takes ten seconds."""
    first = home.start(1)
    state = first.wait_for_rows(10)
    assert (state.attempt, state.job_uid, state.fence, state.parallelism) == (1, "uid-1", 1, 2)
    first.ask("/checkpoints", requestId="c-1")
    checkpoint = first.done("c-1").checkpoint
    assert checkpoint is not None
    assert checkpoint.path == f"{home.checkpoint_dir}/chk-{checkpoint.id}"
    second = home.start(2, standby=True)
    savepoint = asked_for_a_savepoint(first)
    stands_by(second, 0)
    add_batch(home.path / "in", 1)
    stands_by(second, 10)
    wait_for_output(home, 2, first)
    asked_the_wrong_one(second)

    first.terminate()
    end = first.end(0)
    assert (end.outcome, end.attempt, end.fence, end.released) == ("Stopped", 1, 1, False)
    assert end.last_checkpoint is not None
    before = files(home)
    add_batch(home.path / "in", 2)
    stands_by(second, 20)
    assert files(home) == before, "it has written nothing"
    assert [type(e) for e in home.entries() if isinstance(e, Fence)] == [Fence]

    second.ask("/promote", requestId="lead")
    assert second.done("lead").state == "Completed"
    wait_until(lambda: runs(second), 400, f"a run\n{second.log}")
    wait_for_output(home, 3, second)
    state = second.state()
    assert (state.standby, state.fence) == (False, 2)
    assert state.restored_from is not None
    assert state.restored_from.checkpoint_id == end.last_checkpoint.id
    assert second.log.count("starting spark") == 1
    last = [entry for entry in home.entries() if isinstance(entry, Run)][-1]
    assert (last.fence, last.restored_from) == (2, f"chk-{end.last_checkpoint.id}")
    asked_again(second, savepoint)
    second.ask("/stop", requestId="t", mode="Savepoint", name="last", release=True)
    end = second.end(0)
    assert (end.outcome, end.released) == ("Stopped", True)
    assert end.savepoint is not None
    assert SavepointStore(end.savepoint.path).load().checkpoint_id == end.savepoint.checkpoint_id
    assert isinstance(home.entries()[-1], Released)
    for found in (published(home), called(home, "checkpoint"), called(home, "epoch")):
        assert found == expected(3)

    other = {"mode": "Path", "path": savepoint.path, "digest": "sha256:other", "orderId": "o-1"}
    end = home.start(3, uid="uid-2", restore=other).end(4)
    assert (end.outcome, end.code) == ("Failed", "restore_point_changed")


def test_drivers_tell_samples_by_which_the_output_of_two_versions_is_compared(home):
    first = home.start(1)
    first.wait_for_rows(10)
    assert first.state().sample is None
    order = {"percent": 100, "exceptColumns": ["of no sink"]}
    first.ask("/checkpoints", requestId="c-1", sample={**order, "seconds": 3600})
    assert first.done("c-1").state == "Completed"
    second = home.start(2, standby=True, sample=order)
    stands_by(second, 0)
    for batch in range(1, 5):  # each by itself, so that each is an epoch
        add_batch(home.path / "in", batch)
        first.wait_for_rows(10 * (batch + 1))
        stands_by(second, 10 * batch)
    old, new = first.state().sample, second.state().sample
    assert old is not None
    assert new is not None
    assert old.since_epoch <= new.since_epoch, "it began with that checkpoint"
    sinks = ["by-checkpoint", "by-epoch", "out"]
    for found in compared(new, old, sinks):
        assert found.rows >= 2 * 2 * 10, "of the first two batches at least, of both"
        assert found.differing == 0
    wait_for_output(home, 5, first)
    columns = pq.read_table(home.path / "out", columns=["key", "count"])
    (rows,) = columns.combine_chunks().to_batches()
    given = {f"{one:016x}" for one in row_hashes(rows).tolist()}
    told = {row for one in old.segments for row in one.rows["out"]}
    assert len(told) == 40
    assert told < given, "who may read the output can tell which row a hash is of"
    odd = new.segments[0].model_copy(update={"rows": {"out": {"0" * 16: 1}}})
    new = new.model_copy(update={"segments": (odd, *new.segments[1:])})
    assert compared(new, old, ["out"])[0].extra == {"0" * 16: 1}
    for driver in (second, first):
        driver.ask("/stop", requestId="t")
        driver.end(0)


@pytest.mark.soak
def test_whoever_is_killed_at_whichever_step_nothing_is_lost_or_doubled(home):
    leader, batches = home.start(1), 1
    wait_for_output(home, 1, leader)
    for round_ in range(5):
        attempt = 10 * round_
        standby = home.start(attempt + 2, standby=True)
        stands_by(standby, 0)
        if round_ == 0:  # the one that stands by, beside the other
            kill_group(standby.process)
        elif round_ == 1:  # the leader, and the other one leads without a last checkpoint
            kill_group(leader.process)
            standby.ask("/promote", requestId="lead")
            leader = standby
        elif round_ == 2:  # the new leader, as soon as it has claimed the lineage
            leader.ask("/stop", requestId="end")
            leader.end(0)
            standby.ask("/promote", requestId="lead")
            standby.done("lead")
            kill_group(standby.process)
            leader = home.start(attempt + 3)
        elif round_ == 3:  # both, in the middle of a last checkpoint and of a promotion
            add_batch(home.path / "in", batches)
            batches += 1
            leader.ask("/stop", requestId="end")
            kill_group(leader.process)
            standby.ask("/promote", requestId="lead")
            kill_group(standby.process)
            leader = home.start(attempt + 3)
        else:  # nobody: the leader is not even stopped, and is shut out by the fence
            standby.ask("/promote", requestId="lead")
            assert leader.end(6).code == "fenced"
            leader = standby
        add_batch(home.path / "in", batches)
        batches += 1
        wait_for_output(home, batches, leader)
        assert published(home) == expected(batches)
    leader.ask("/stop", requestId="end")
    leader.end(0)
    assert published(home) == expected(batches)
    # After a kill the same rows may be handed over once more, and never others.
    assert set(called(home, "checkpoint")) == set(expected(batches))
