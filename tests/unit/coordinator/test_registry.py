"""Files that several checkpoints reference."""

import pytest

from moorage_state.coordinator import ClaimMode, SharedStateKey, SharedStateRegistry, TaskId
from moorage_state.errors import Bug

KEY = SharedStateKey("db", "1.sst")


@pytest.fixture
def registry():
    return SharedStateRegistry()


def test_a_new_file_is_taken_as_it_is(registry):
    assert registry.register(KEY, "one", 1) == ("one", ())


def test_a_file_that_was_not_uploaded_again_is_the_registered_one(registry):
    registry.register(KEY, "one", 1)
    assert registry.register(KEY, None, 2) == ("one", ())


def test_a_file_that_was_never_uploaded_is_a_bug_and_changes_nothing(registry):
    other = SharedStateKey("db", "2.sst")
    with pytest.raises(Bug, match=r"file=2\.sst"):
        registry.register_all({KEY: "one", other: None}, 1)
    assert len(registry) == 0


def test_the_same_file_again_is_nothing_new(registry):
    registry.register(KEY, "one", 1)
    assert registry.register(KEY, "one", 1) == ("one", ())
    assert len(registry) == 1


def test_another_file_under_the_key_of_a_completed_checkpoint_is_discarded(registry):
    registry.register(KEY, "one", 1)
    registry.checkpoint_completed(1)
    assert registry.register(KEY, "two", 2) == ("one", ("two",))


def test_another_file_takes_the_place_of_one_that_no_completed_checkpoint_has(registry):
    registry.register(KEY, "one", 1)
    assert registry.register(KEY, "two", 2) == ("two", ("one",))


def test_a_replaced_file_stays_while_a_pending_checkpoint_references_it(registry):
    registry.register(KEY, "one", 1)
    assert registry.register(KEY, "two", 2, live=[1, 2]) == ("two", ())
    registry.checkpoint_completed(1)
    assert registry.unregister_unused(1) == ()


def test_two_tasks_of_one_checkpoint_keep_a_file_each(registry):
    registry.register(KEY, "one", 1)
    assert registry.register(KEY, "two", 1) == ("two", ())


def test_a_key_means_the_confirmed_file_once_one_is(registry):
    registry.register(KEY, "one", 1)
    registry.register(KEY, "two", 2, live=[1, 2])
    registry.checkpoint_completed(1)
    assert registry.register(KEY, None, 3).handle == "one"


def test_a_late_file_takes_the_place_of_no_other(registry):
    registry.register(KEY, "one", 2)
    assert registry.register(KEY, "two", 1, live=[2], late=True) == ("one", ("two",))


def test_a_file_may_go_when_all_that_used_it_are_older_than_the_oldest_retained(registry):
    registry.register(KEY, "one", 1)
    registry.register(KEY, None, 3)
    assert registry.unregister_unused(3) == ()
    assert registry.unregister_unused(4) == ("one",)


def test_asking_again_finds_nothing_more(registry):
    registry.register(KEY, "one", 1)
    registry.unregister_unused(2)
    assert registry.unregister_unused(2) == ()
    assert len(registry) == 0


def test_what_a_pending_checkpoint_uses_stays_whatever_its_id(registry):
    registry.register(KEY, "one", 1)
    assert registry.unregister_unused(5, live=[1]) == ()
    assert registry.unregister_unused(5) == ("one",)


def test_a_file_confirmed_by_an_older_checkpoint_stays_confirmed_for_a_newer_that_fails(registry):
    registry.register(KEY, "one", 1)
    registry.register(KEY, None, 2)
    registry.checkpoint_completed(1)
    assert registry.register(KEY, "two", 3) == ("one", ("two",))


@pytest.mark.parametrize(
    ("mode", "given_out"),
    [(ClaimMode.CLAIM, ("old",)), (ClaimMode.NO_CLAIM, ()), (ClaimMode.LEGACY, ())],
)
def test_files_of_a_restored_snapshot_are_deleted_only_if_it_was_claimed(
    registry, completed, mode, given_out
):
    registry.register_restored(completed(7, shared={TaskId("count", 0): {KEY: "old"}}), mode)
    own = SharedStateKey("db", "2.sst")
    registry.register(own, "own", 8)
    assert registry.unregister_unused(9) == (*given_out, "own")


def test_files_of_a_restored_snapshot_count_as_confirmed(registry, completed):
    registry.register_restored(
        completed(7, shared={TaskId("count", 0): {KEY: "old"}}), ClaimMode.NO_CLAIM
    )
    assert registry.register(KEY, "new", 8) == ("old", ("new",))
