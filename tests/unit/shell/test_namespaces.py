"""Which namespaces are looked after, one by one."""

import logging

import pytest

from moorage_operator.metrics import OperatorMetrics
from moorage_operator.watch_health import WatchedNamespaces


@pytest.fixture
def two():
    return WatchedNamespaces(("a", "b"))


def test_none_is_looked_after_before_its_objects_were_listed(two):
    assert not two.primed
    assert two.shown() == {"a": False, "b": False}


def test_one_that_was_listed_is_enough_to_begin(two):
    two.listed("a", "forbidden")
    assert not two.primed
    two.listed("b")
    assert two.primed
    assert two.shown() == {"a": False, "b": True}
    two.listed("b", "forbidden")
    assert two.primed, "what was once known is not unknown again"


def test_a_refused_watch_counts_until_it_is_let_be(two):
    two.listed("a")
    two.watched("a", "Pod", "watch of Pod: 403")
    assert (two.problem("a"), two.is_watched("a", "Pod")) == ("watch of Pod: 403", False)
    assert two.is_watched("a", "StatefulSparkJob")
    two.watched("a", "Pod")
    assert (two.problem("a"), two.is_watched("a", "Pod")) == ("", True)


def test_all_namespaces_at_once_are_one_without_a_name():
    whole = WatchedNamespaces(())
    whole.listed(None)
    assert (whole.names, whole.shown()) == ((None,), {"": True})


def test_each_change_is_told_once(two, caplog):
    caplog.set_level(logging.INFO)
    for problem in ("forbidden", "forbidden", "", ""):
        two.listed("a", problem)
    told = [record.getMessage() for record in caplog.records]
    assert ["not looked after" in one for one in told] == [True, False]
    assert "namespace=a error=forbidden" in told[0]
    assert "--watch-namespaces" in told[0]


def test_only_the_process_that_leads_shows_them(two):
    leads = [True]
    metrics = OperatorMetrics(leads=lambda: leads[0], namespaces=two.shown)

    def value():
        labels = {"namespace": "a"}
        return metrics.registry.get_sample_value("moorage_operator_namespace_watched", labels)

    assert value() == 0
    two.listed("a")
    assert value() == 1
    leads[0] = False
    assert value() is None


def test_one_may_come_later_and_go_again(two):
    two.listed("a")
    two.listed("b")
    two.add("c")
    assert two.shown() == {"a": True, "b": True, "c": False}
    two.begun("c", "Pod")
    assert two.anew("c").is_set()
    two.listed("c")
    two.remove("a")
    assert two.shown() == {"b": True, "c": True}
    # What is still on its way from it says nothing any more.
    two.listed("a", "forbidden")
    two.watched("a", "Pod", "403")
    two.begun("a", "Pod")
    assert two.names == ("b", "c")
    two.add("a")
    assert two.problem("a") == "its objects were not listed yet"


async def test_one_that_goes_is_not_waited_for():
    found = WatchedNamespaces((), all_if_none=False)
    assert found.primed
    await found.answered()
    found.add("a")
    assert found.names == ("a",)
    found.remove("a")
    await found.answered()
