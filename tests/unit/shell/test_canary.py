"""A dead watch is told by what lists show and it does not."""

import pytest

from moorage_operator.watch_health import Canary

JOB = "StatefulSparkJob"


def body(version, name="clicks", namespace="here"):
    return {"metadata": {"name": name, "namespace": namespace, "resourceVersion": str(version)}}


def versions(kind, *bodies):
    metas = [one["metadata"] for one in bodies]
    return [
        (
            (kind, one["namespace"], one["name"]),
            int(text) if (text := one["resourceVersion"]).isdecimal() else 0,
        )
        for one in metas
    ]


@pytest.fixture
def now():
    return [0.0]


@pytest.fixture
def canary(now):
    return Canary(lambda: now[0], patience=10.0)


def test_a_watch_that_shows_what_lists_show_is_alive(canary, now):
    canary.seen("", JOB, body(7))
    canary.seen("MODIFIED", JOB, body(9))
    canary.listed(JOB, None, versions(JOB, body(9)))
    now[0] = 1000.0
    assert canary.trouble() == ""


def test_a_watch_that_shows_nothing_of_a_newer_version_is_dead_after_a_while(canary, now):
    canary.seen("", JOB, body(7))
    canary.listed(JOB, None, versions(JOB, body(8)))
    now[0] = 10.0
    canary.listed(JOB, None, versions(JOB, body(8)))
    assert canary.trouble() == ""
    now[0] = 11.0
    canary.listed(JOB, None, versions(JOB, body(8)))
    assert "the watch of StatefulSparkJob is dead: here/clicks has version 8" in canary.trouble()


def test_an_object_that_no_watch_ever_showed_is_a_sign_as_well(canary, now):
    canary.listed("Pod", "here", versions("Pod", body(8)))
    now[0] = 11.0
    canary.listed("Pod", "here", versions("Pod", body(8)))
    assert "the watch of Pod is dead" in canary.trouble()


def test_a_later_list_does_not_begin_the_wait_anew(canary, now):
    for version in (8, 9, 10):
        canary.listed(JOB, None, versions(JOB, body(version)))
        now[0] += 6.0
    assert canary.trouble()


def test_a_watch_that_is_late_has_caught_up_by_the_version_or_a_newer_one(canary, now):
    canary.listed(JOB, None, versions(JOB, body(8), body(8, "other")))
    canary.seen("MODIFIED", JOB, body(7))
    canary.seen("MODIFIED", JOB, body(8))
    canary.seen("MODIFIED", JOB, body(12, "other"))
    now[0] = 11.0
    canary.listed(JOB, None, versions(JOB, body(8), body(12, "other")))
    assert canary.trouble() == ""


def test_an_event_of_an_older_version_is_no_sign_of_life(canary, now):
    canary.listed(JOB, None, versions(JOB, body(8)))
    canary.seen("MODIFIED", JOB, body(7))
    now[0] = 11.0
    canary.listed(JOB, None, versions(JOB, body(8)))
    assert canary.trouble()


def test_nothing_is_dead_while_nothing_can_be_listed(canary, now):
    canary.listed(JOB, None, versions(JOB, body(8)))
    now[0] = 1000.0
    assert canary.trouble() == ""
    assert canary.wants_list()


def test_an_object_that_went_while_its_watch_was_connecting_is_not_waited_for(canary, now):
    canary.listed(JOB, None, versions(JOB, body(8)))
    now[0] = 11.0
    canary.listed(JOB, None, versions(JOB))
    assert canary.trouble() == ""
    assert not canary.wants_list()


def test_a_watch_that_shows_it_after_all_is_alive_again(canary, now):
    canary.listed(JOB, None, versions(JOB, body(8)))
    now[0] = 11.0
    canary.listed(JOB, None, versions(JOB, body(8)))
    assert canary.trouble()
    canary.seen("MODIFIED", JOB, body(8))
    assert canary.trouble() == ""
    assert not canary.wants_list()


@pytest.mark.parametrize("namespace", [None, "here"])
def test_what_is_gone_is_not_waited_for(canary, now, namespace):
    canary.listed(JOB, namespace, versions(JOB, body(8), body(8, "other")))
    canary.seen("DELETED", JOB, body(9))
    canary.listed(JOB, namespace, versions(JOB))
    now[0] = 11.0
    canary.listed(JOB, namespace, versions(JOB))
    assert canary.trouble() == ""


def test_a_list_of_one_namespace_says_nothing_about_another(canary, now):
    canary.listed(JOB, "there", versions(JOB, body(8, namespace="there")))
    canary.listed(JOB, "here", versions(JOB))
    now[0] = 11.0
    canary.listed(JOB, "here", versions(JOB))
    canary.listed(JOB, "there", versions(JOB, body(8, namespace="there")))
    assert "there/clicks" in canary.trouble()


def test_versions_that_are_no_numbers_prove_nothing(canary, now):
    canary.listed(JOB, None, versions(JOB, body("v1-abc")))
    now[0] = 11.0
    canary.listed(JOB, None, versions(JOB, body("v1-abc")))
    assert canary.trouble() == ""


def test_a_watch_that_is_refused_is_excused(canary, now):
    canary.listed(JOB, None, versions(JOB, body(8)))
    now[0] = 12.0
    canary.listed(JOB, None, versions(JOB, body(8)))
    assert canary.trouble()
    canary.excuse(JOB, "another")
    assert canary.trouble()
    canary.excuse(JOB, "here")
    assert canary.trouble() == ""
    assert not canary.wants_list()


def test_watches_that_go_on_catching_up_are_not_dead_however_long_it_takes(canary, now):
    """A fleet's first events take minutes; a new process would begin them anew, without end."""
    names = [f"p{number}" for number in range(20)]
    canary.listed("Pod", None, versions("Pod", *(body(8, name) for name in names)))
    canary.listed(JOB, None, versions(JOB, body(8)))
    for name in names:
        now[0] += 5.0
        canary.seen("", "Pod", body(8, name))
        canary.listed(JOB, None, versions(JOB, body(8)))
        assert canary.trouble() == ""
        assert canary.is_behind()
        assert not canary.wants_list()
    now[0] += 11.0
    assert canary.wants_list()
    canary.listed(JOB, None, versions(JOB, body(8)))
    assert "the watch of StatefulSparkJob is dead" in canary.trouble()
