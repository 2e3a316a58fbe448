"""What counts as a sign that a run gets on, while an epoch takes long and between epochs."""

import json
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from moorage.driver import query
from moorage.driver.query import Liveness, lag_of
from moorage.driver.reporter import Reporter


class FakeSpark:
    """Spark's status tracker, and a query's status."""

    def __init__(self) -> None:
        self.stages: dict[int, tuple[int, int] | None] = {}
        self.triggered = False
        self.fails = False
        self.lastProgress: Any = None

    @property
    def sparkContext(self) -> Any:  # noqa: N802  Spark's name
        return self

    @property
    def status(self) -> dict[str, bool]:
        return {"isTriggerActive": self.triggered}

    def statusTracker(self) -> Any:  # noqa: N802  Spark's name
        if self.fails:
            raise ConnectionError("the gateway is gone")
        return self

    def getActiveStageIds(self) -> list[int]:  # noqa: N802  Spark's name
        return sorted(self.stages)

    def getStageInfo(self, stage: int) -> Any:  # noqa: N802  Spark's name
        found = self.stages[stage]
        if found is None:
            return None
        active, done = found
        return SimpleNamespace(
            stageId=stage, currentAttemptId=0, numActiveTasks=active, numCompletedTasks=done
        )


@pytest.fixture
def spark() -> FakeSpark:
    return FakeSpark()


@pytest.fixture
def seen() -> Reporter:
    reporter = Reporter(lambda _progress: None)
    reporter.phase("running")
    reporter.epoch_began()
    return reporter


def moves(reporter: Reporter, action: Any) -> int:
    """How much the count of moves grows by an action."""
    before = reporter.progress.moves
    action()
    return reporter.progress.moves - before


def test_a_task_that_ends_and_a_stage_that_begins_are_signs(spark, seen):
    life = Liveness(spark, seen.lives)
    spark.stages = {3: (4, 0)}
    assert moves(seen, life.within) == 1
    assert moves(seen, life.within) == 0
    spark.stages = {3: (3, 1)}
    assert moves(seen, life.within) == 1
    assert seen.progress.tasks == 3
    spark.stages = {4: (2, 0)}
    assert moves(seen, life.within) == 1


def test_a_task_that_fails_and_is_tried_again_is_none(spark, seen):
    life = Liveness(spark, seen.lives)
    spark.stages = {3: (4, 0), 4: None}
    life.within()
    spark.stages = {3: (3, 0), 4: None}
    assert moves(seen, life.within) == 0
    assert seen.progress.tasks == 3


def test_what_cannot_be_seen_is_no_sign_and_ends_nothing(spark, seen):
    spark.fails = True
    assert moves(seen, Liveness(spark, seen.lives).within) == 0


def test_waiting_for_the_next_trigger_is_a_sign_and_a_trigger_that_goes_on_is_none(spark, seen):
    now = [0.0]
    life = Liveness(spark, seen.lives, clock=lambda: now[0])
    assert moves(seen, lambda: life.between(spark)) == 0
    now[0] = 10.0
    assert moves(seen, lambda: life.between(spark)) == 1
    assert moves(seen, lambda: life.between(spark)) == 0
    now[0], spark.triggered = 20.0, True
    assert moves(seen, lambda: life.between(spark)) == 0


def test_the_epoch_is_looked_into_while_its_lock_is_waited_for(spark, seen, monkeypatch):
    monkeypatch.setattr(query, "_EVERY_SECONDS", 0.01)
    life, lock = Liveness(spark, seen.lives), threading.Lock()
    looked = threading.Event()
    monkeypatch.setattr(life, "within", looked.set)
    entered = threading.Event()

    def wait_for_it() -> None:
        with life.watching(lock, spark):
            entered.set()

    lock.acquire()
    thread = threading.Thread(target=wait_for_it)
    thread.start()
    assert looked.wait(10)
    assert not entered.is_set()
    lock.release()
    thread.join(10)
    assert entered.is_set()
    assert not lock.locked()


def test_while_an_epoch_is_under_way_somebody_looks_several_times_a_second(
    spark, seen, monkeypatch
):
    monkeypatch.setattr(query, "_MEANWHILE_SECONDS", 0.01)
    lock, looks = threading.Lock(), []

    def look() -> None:
        looks.append(1)
        if len(looks) == 3:
            lock.release()

    lock.acquire()
    with Liveness(spark, seen.lives, meanwhile=look).watching(lock, spark):
        assert len(looks) == 3


def test_an_epoch_ends_with_its_commit_and_with_whatever_else_begins(seen):
    assert seen.progress.in_epoch
    seen.phase("rewinding")
    assert not seen.progress.in_epoch
    seen.phase("running")
    seen.epoch_began()
    assert moves(seen, lambda: seen.epoch(1, 10, 0, None, 2.0)) == 1
    assert not seen.progress.in_epoch


KAFKA = {"clicks": {"0": 40, "1": 7}}


@pytest.mark.parametrize(
    ("sources", "rows"),
    [
        ([(KAFKA, {"clicks": {"0": 100, "1": 7}})], 60),
        ([(json.dumps(KAFKA), json.dumps({"clicks": {"0": 41, "1": 9}}))], 3),
        ([(KAFKA, KAFKA)], 0),
        ([(KAFKA, {"clicks": {"0": 40, "1": 7, "2": 5}})], 5),
        ([(KAFKA, {"clicks": {"0": 30, "1": 8}}), (KAFKA, {"clicks": {"0": 45}})], 6),
        ([(5, 9)], None),
        ([({"logOffset": 3}, None)], None),
        ([("not json", "not json")], None),
        ([({"logOffset": 3}, None), (KAFKA, {"clicks": {"0": 50}})], 10),
        ([], None),
    ],
)
def test_lag_is_counted_where_offsets_are_rows(sources, rows):
    assert lag_of(sources) == rows


def test_the_lag_of_a_trigger_is_told_once(spark, seen):
    now = [0.0]
    life = Liveness(spark, seen.lives, clock=lambda: now[0], tell_lag=seen.lag)
    spark.lastProgress = SimpleNamespace(
        timestamp="t1",
        sources=[SimpleNamespace(endOffset=KAFKA, latestOffset={"clicks": {"0": 50}})],
    )
    now[0] = 10.0
    life.between(spark)
    now[0] = 20.0
    life.between(spark)
    assert (seen.progress.lag_rows, seen.progress.lag_looks) == (10, 1)
    spark.lastProgress.timestamp = "t2"
    now[0] = 30.0
    life.between(spark)
    assert seen.progress.lag_looks == 2
