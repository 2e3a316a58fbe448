"""Spark is asked about its executors when there are others than before."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from py4j.protocol import Py4JError, Py4JJavaError

from moorage.cluster.executors import SparkExecutors
from moorage.engine.placement import AnchoredPlacement, ExecutorWatch, LiveExecutor


class Strings(list):
    """What of a Scala list is used."""

    def mkString(self, between):  # noqa: N802  its name there
        return between.join(self)

    def size(self):
        return len(self)

    def apply(self, index):
        return self[index]

    def isEmpty(self):  # noqa: N802
        return not self


class Spark:
    """A context whose executors come and go; counts how often it lists them all."""

    def __init__(self, *ids, local=False, **conf):
        self.ids, self.listed, self.dead = [*ids], [*ids], []
        self.unaddressed: dict[str, str | None] = {}
        self.coreless: set[str] = set()
        self.disconnected = Strings()
        self.local, self.conf, self.lists = local, conf, 0
        self._jsc = SimpleNamespace(sc=lambda: self)
        self._jvm = None
        self.version = "of the test"

    def getConf(self):  # noqa: N802
        return SimpleNamespace(
            getAll=lambda: [(k.replace("_", "."), v) for k, v in self.conf.items()]
        )

    def isLocal(self):  # noqa: N802
        return self.local

    def isStopped(self):  # noqa: N802
        return False

    def getExecutorIds(self):  # noqa: N802
        return Strings(self.ids)

    def schedulerBackend(self):  # noqa: N802
        return self

    def executorsPendingLossReason(self):  # noqa: N802
        return self.disconnected

    def statusStore(self):  # noqa: N802
        return self

    def executorList(self, active):  # noqa: N802
        self.lists += 1
        names = [*self.listed, *([] if active else self.dead)]
        return Strings([self.summary(name) for name in names])

    def summary(self, name):
        return SimpleNamespace(
            id=lambda: name,
            isExcluded=lambda: False,
            isActive=lambda: name in self.listed,
            hostPort=lambda: self.unaddressed.get(name, f"host-{name}:7079"),
            totalCores=lambda: 0 if name in self.coreless else 2,
            removeReason=lambda: SimpleNamespace(
                isDefined=lambda: True, get=lambda: "gone\nfor good"
            ),
        )

    def isDefined(self):  # noqa: N802
        return True

    def get(self):
        return "gone\nfor good"

    def lose(self, name):
        self.ids.remove(name)
        self.listed.remove(name)
        self.dead.append(name)


@pytest.fixture
def spark():
    return Spark("0", "1", "2")


def test_executors_are_listed_once_for_each_change(spark):
    watch = ExecutorWatch(spark)
    first = watch.live()
    assert first == [LiveExecutor(name, f"host-{name}", 2) for name in "012"]
    assert [watch.live() for _ in range(5)] == [first] * 5
    assert spark.lists == 1
    spark.lose("1")
    assert [[e.id for e in watch.live()] for _ in range(5)] == [["0", "2"]] * 5
    assert spark.lists == 2


def test_one_without_a_connection_is_gone_before_spark_has_heard_why(spark):
    watch, pool = ExecutorWatch(spark), SparkExecutors(spark, 3)
    assert len(watch.live()) == len(pool.live()) == 3
    spark.disconnected.append("1")
    assert watch.ids() == pool.registered() == {"0", "2"}
    assert [e.id for e in watch.live()] == [e.id for e in pool.live()] == ["0", "2"]
    assert pool.trouble() == "executor 1 has no connection any more, and nobody has said yet why"
    spark.lose("1")
    spark.disconnected.clear()
    assert [e.id for e in watch.live()] == [e.id for e in pool.live()] == ["0", "2"]
    assert pool.view().lost == 1
    assert pool.trouble() == "executor 1 was lost last: gone for good"


def test_a_list_that_changes_as_it_is_read_is_read_at_the_next_look(spark):
    class Changing(Strings):
        looks = 0

        def mkString(self, between):  # noqa: N802
            self.looks += 1
            if self.looks == 1:
                gone = SimpleNamespace(_target_id="", _gateway_client=None)
                raise Py4JJavaError("meanwhile", gone)
            return super().mkString(between)

    spark.disconnected = Changing(["1"])
    watch = ExecutorWatch(spark)
    assert [watch.ids() for _ in range(2)] == [{"0", "1", "2"}, {"0", "2"}]


def test_a_scheduler_that_keeps_no_list_of_them_is_asked_once(spark, monkeypatch, caplog):
    def unknown():
        raise Py4JError("no such method")

    monkeypatch.setattr(spark, "executorsPendingLossReason", unknown)
    watch = ExecutorWatch(spark)
    assert [watch.ids() for _ in range(2)] == [{"0", "1", "2"}] * 2
    assert caplog.text.count("executors.connections-unknown") == 1


def test_until_all_that_registered_are_listed_it_looks_again(spark):
    watch = ExecutorWatch(spark)
    spark.ids.append("3")
    assert [[e.id for e in watch.live()] for _ in range(2)] == [["0", "1", "2"]] * 2
    spark.listed.append("3")
    assert [len(watch.live()) for _ in range(5)] == [4] * 5
    assert spark.lists == 3


@pytest.mark.parametrize("early", [None, "host-1", "10.0.0.1", "[fd00::1]"])
def test_one_that_is_listed_before_its_address_or_its_cores_are_known_is_looked_for_again(
    spark, early
):
    # Spark puts an entry together of the events of an executor and of its block manager.
    watch = ExecutorWatch(spark)
    # Until that of the latter its address is the host, without a port.
    spark.unaddressed, spark.coreless = {"1": early}, {"2"}
    assert [[e.id for e in watch.live()] for _ in range(2)] == [["0"]] * 2
    spark.unaddressed, spark.coreless = {}, set()
    assert watch.live() == [LiveExecutor(name, f"host-{name}", 2) for name in "012"]


def test_the_host_of_an_address_keeps_its_brackets(spark):
    spark.unaddressed = {"1": "[fd00::1]:7079"}
    assert [e.host for e in ExecutorWatch(spark).live()] == ["host-0", "[fd00::1]", "host-2"]


def test_where_spark_excludes_executors_for_a_while_it_looks_each_time():
    spark: Any = Spark("0", spark_excludeOnFailure_enabled="true")
    watch = ExecutorWatch(spark)
    assert [len(watch.live()) for _ in range(3)] == [1] * 3
    assert spark.lists == 3


def test_a_local_session_has_none():
    spark: Any = Spark("driver", local=True)
    watch = ExecutorWatch(spark)
    assert (watch.ids(), watch.live(), spark.lists) == (frozenset(), [], 0)


def test_an_epoch_of_several_operators_looks_once(spark, monkeypatch):
    monkeypatch.setattr(AnchoredPlacement, "_probe", lambda _: True)
    monkeypatch.setattr(AnchoredPlacement, "_empty_rdd", lambda _, locations: [*locations])
    placement = AnchoredPlacement(spark)
    placement.pin({0: "0", 1: "2"})
    for _ in range(3):
        placement.look()
        anchors = [placement._anchor(2) for _ in range(3)]
        assert all(anchor is anchors[0] for anchor in anchors)
    assert anchors[0].rdd == ["hdfs_cache_executor_host-0_0", "hdfs_cache_executor_host-2_2"]
    assert spark.lists == 1
    spark.lose("2")
    placement.look()
    assert placement._anchor(2).rdd == ["hdfs_cache_executor_host-0_0", None]


def test_those_that_were_lost_are_counted_when_there_are_others(spark):
    pool = SparkExecutors(spark, 3)
    assert [pool.view().lost for _ in range(4)] == [0] * 4
    spark.lose("1")
    assert [(pool.view().ready, pool.view().lost) for _ in range(4)] == [(2, 1)] * 4
    assert spark.lists == 2 * 2
    assert pool.trouble() == "executor 1 was lost last: gone for good"
    assert pool.registered() == {"0", "2"}


def test_one_that_is_listed_as_active_still_is_lost_at_the_next_look(spark):
    pool = SparkExecutors(spark, 3)
    spark.ids.remove("1")
    assert pool.view().lost == 0
    spark.listed.remove("1")
    spark.dead.append("1")
    assert pool.view().lost == 1


def test_one_that_is_to_leave_and_is_lost_first_is_not_replaced_any_more(spark):
    asked: list[int] = []
    killed: list[Any] = []
    spark._jvm = MagicMock()
    spark.requestTotalExecutors = lambda count, *_: asked.append(count)
    spark.killExecutors = killed.append
    pool = SparkExecutors(spark, 3)
    pool.scale(2)
    assert asked == [3], "those that leave still count"
    assert pool.leaving() == {"2"}
    spark.lose("2")
    pool.dismiss()
    assert (asked, pool.leaving(), killed) == ([3, 2], frozenset(), [])
    pool.dismiss()
    assert asked == [3, 2]
