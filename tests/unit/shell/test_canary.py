"""A dead watch is told by what lists show and it does not."""

import pytest

from moorage_operator.watch_health import Canary

JOB = "StatefulSparkJob"


def body(version, name="clicks", namespace="here"):
    return {"metadata": {"name": name, "namespace": namespace, "resourceVersion": str(version)}}


def listed(canary, kind, namespace, *bodies, there=()):
    """A list showed these versions, which no watch had; and that others are still there."""
    metas = [one["metadata"] for one in bodies]
    keys = [(kind, one["namespace"], one["name"]) for one in metas]
    numbers = [int(one["resourceVersion"]) for one in metas]
    known = {*keys, *((kind, "here", name) for name in there)}
    canary.listed(kind, namespace, dict(zip(keys, numbers, strict=True)), known.__contains__)


@pytest.fixture
def now():
    return [0.0]


@pytest.fixture
def canary(now):
    return Canary(lambda: now[0], patience=10.0)


def test_a_watch_that_shows_what_lists_show_is_alive(canary, now):
    canary.seen("", JOB, body(7))
    canary.seen("MODIFIED", JOB, body(9))
    listed(canary, JOB, None)
    now[0] = 1000.0
    assert canary.trouble() == ""
    assert not canary.wants_list()


def test_a_watch_that_shows_nothing_of_a_newer_version_is_dead_after_a_while(canary, now):
    canary.seen("", JOB, body(7))
    listed(canary, JOB, None, body(8))
    now[0] = 10.0
    listed(canary, JOB, None, there=["clicks"])
    assert canary.trouble() == ""
    assert not canary.wants_list()
    now[0] = 11.0
    assert canary.wants_list("here")
    assert not canary.wants_list("there")
    listed(canary, JOB, None, there=["clicks"])
    assert "the watch of StatefulSparkJob is dead: here/clicks has version 8" in canary.trouble()


def test_a_later_list_does_not_begin_the_wait_anew(canary, now):
    for version in (8, 9, 10):
        listed(canary, JOB, None, body(version))
        now[0] += 6.0
    assert canary.trouble()


def test_a_watch_that_is_late_has_caught_up_by_the_version_or_a_newer_one(canary, now):
    listed(canary, JOB, None, body(8), body(8, "other"))
    canary.seen("MODIFIED", JOB, body(7))
    canary.seen("MODIFIED", JOB, body(8))
    canary.seen("MODIFIED", JOB, body(12, "other"))
    now[0] = 11.0
    listed(canary, JOB, None, there=["clicks", "other"])
    assert canary.trouble() == ""


def test_an_event_of_an_older_version_is_no_sign_of_life(canary, now):
    listed(canary, JOB, None, body(8))
    canary.seen("MODIFIED", JOB, body(7))
    now[0] = 11.0
    listed(canary, JOB, None, there=["clicks"])
    assert canary.trouble()


def test_nothing_is_dead_while_nothing_can_be_listed(canary, now):
    listed(canary, JOB, None, body(8))
    now[0] = 1000.0
    assert canary.trouble() == ""
    assert canary.wants_list()


def test_a_watch_that_shows_it_after_all_is_alive_again(canary, now):
    listed(canary, JOB, None, body(8))
    now[0] = 11.0
    listed(canary, JOB, None, there=["clicks"])
    assert canary.trouble()
    canary.seen("MODIFIED", JOB, body(8))
    assert canary.trouble() == ""
    assert not canary.wants_list()


@pytest.mark.parametrize("namespace", [None, "here"])
def test_what_is_gone_is_not_waited_for(canary, now, namespace):
    listed(canary, JOB, namespace, body(8), body(8, "other"))
    canary.seen("DELETED", JOB, body(9))
    now[0] = 11.0
    listed(canary, JOB, namespace)
    assert canary.trouble() == ""
    assert not canary.wants_list()


def test_a_list_of_one_namespace_says_nothing_about_another(canary, now):
    listed(canary, JOB, "there", body(8, namespace="there"))
    listed(canary, JOB, "here")
    now[0] = 11.0
    listed(canary, JOB, "here")
    listed(canary, JOB, "there", body(9, namespace="there"))
    assert "there/clicks" in canary.trouble()


def test_a_watch_that_is_refused_or_begins_anew_is_excused(canary, now):
    listed(canary, JOB, None, body(8))
    now[0] = 12.0
    listed(canary, JOB, None, there=["clicks"])
    assert canary.trouble()
    canary.excuse(JOB, "another")
    assert canary.trouble()
    canary.excuse(JOB, "here")
    assert canary.trouble() == ""
    assert not canary.wants_list()
