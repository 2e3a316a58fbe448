"""A job with a changelog: which checkpoints are copies, and what becomes of the copies."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from moorage_testing.jobs import wait_until

from moorage.driver.materialization import Materialization
from moorage.driver.reporter import Reporter
from moorage.engine.fleet import FleetUpload
from moorage_state.errors import ServerGone, StoreUnavailable
from moorage_state.snapshots import Checkpoint
from moorage_state.tuning import ChangelogOptions

LOG = ChangelogOptions(True, 60.0, 1)


def take(job):
    job.commit(str(job.epoch))
    job.due()
    done = job.settle()
    # The copy is in the store, or failed, before the next one.
    copies = job.checkpointer._materialization
    wait_until(lambda: (job.poll(), not (copies and copies.uploads))[1], 20, "the copy")
    return done


def test_without_a_changelog_every_checkpoint_is_a_copy(make_job):
    job = make_job()
    assert (take(job), take(job)) == ([1], [2])
    assert job.fleet.ways == ["copy", "copy"]


def test_a_checkpoint_lists_the_log_and_now_and_then_a_copy_is_taken_with_it(make_job):
    job = make_job(changelog=LOG)
    for _ in range(5):
        take(job)
    # 25 seconds lie between two, and a minute between copies.
    assert job.fleet.ways == ["log", "log", "log", "log and copy", "log"]
    assert job.fleet.built_on == [0, 1, 2, 3, 4]
    assert job.fleet.materialized == [4]
    assert (job.reporter.progress.changelog.started, job.reporter.progress.changelog.completed) == (
        1,
        1,
    )


def test_what_deltas_cost_on_their_way_to_the_store_is_counted():
    now = [0.0]
    one, works = copies(now)
    results = [
        SimpleNamespace(bytes_written=70, objects=2, attempts=5),
        StoreUnavailable("not now"),
    ]

    def persist(_least):
        now[0] += 2.0
        return results.pop(0)

    fleet: Any = SimpleNamespace(persist=persist)
    one._fleet = fleet
    for epoch in (1, 2):
        now[0] += 10.0
        one.ahead(epoch)
        works.pop()()
    one.uploaded(cast("FleetUpload", SimpleNamespace(bytes_written=30, objects=1, attempts=1)), 0.5)
    one.uploaded(cast("FleetUpload", SimpleNamespace(bytes_written=0, objects=0, attempts=0)), 0.5)
    view = one._reporter.progress.changelog
    assert view is not None
    assert (view.uploads, view.failed_uploads) == (2, 1)
    assert (view.upload_seconds, view.upload_bytes, view.upload_objects) == (2.5, 100, 3)
    assert view.upload_attempts == 6


def test_nothing_is_materialized_where_that_is_switched_off(make_job):
    job = make_job(changelog=ChangelogOptions(False, 1.0, 1))
    for _ in range(4):
        take(job)
    assert job.fleet.ways == ["log", "log", "log", "log"]


def test_a_copy_that_no_checkpoint_lists_yet_makes_one_without_an_epoch(make_job):
    job = make_job(changelog=LOG)
    for _ in range(4):
        take(job)
    assert job.checkpointer._unfinished().checkpoint_ids == (4,)
    job.due()
    assert job.settle() == [5]
    assert job.checkpointer._unfinished().checkpoint_ids == ()
    job.due()
    assert job.settle() == []


class Later:
    """A background whose work is done when it is told to."""

    def __init__(self):
        self.works = []

    def run(self, _name, action, done):
        self.works.append(lambda: done(action()))


def copies(now, wall=None):
    fleet = SimpleNamespace(materialize=lambda _id: SimpleNamespace(bytes_written=1))
    reporter: Any = Reporter(lambda _progress: None)
    background: Any = Later()
    clocks = (lambda: now[0]), (lambda: (wall or now)[0])
    return Materialization(LOG, fleet, background, reporter, *clocks), background.works


def test_runs_that_are_all_shorter_than_the_interval_take_a_copy_now_and_then():
    now, wall = [0.0], [1_000.0]
    one, _ = copies(now, wall)
    assert one.way(1, builds=False) == "log"
    assert one.base_ms == 1_000_000
    # A driver that begins counts its own time anew.
    for begins in (1_025.0, 1_050.0):
        now, wall = [7.0], [begins]
        then, one = one.base_ms, copies(now, wall)[0]
        one.restored(then)
        assert one.way(2, builds=True) == "log"
        assert one.base_ms == 1_000_000
    now[0], wall[0] = now[0] + 10.0, wall[0] + 10.0
    assert one.way(3, builds=True) == "log and copy"


def test_what_a_log_begins_with_is_as_old_as_the_copy_that_it_lists():
    now = [100.0]
    one, works = copies(now)
    one.restored(50_000)
    now[0] = 120.0
    assert one.way(4, builds=True) == "log and copy"
    assert one.base_ms == 50_000
    one.completed(4)
    now[0] = 130.0
    works.pop()()
    one.way(5, builds=True)
    assert one.base_ms == 120_000
    one.aborted(5)
    assert one.base_ms == 50_000, "the copy is gone with the first checkpoint that listed it"


@pytest.mark.parametrize("base_ms", [None, 10**15])
def test_a_base_of_unknown_age_is_as_old_as_the_run(base_ms):
    now = [100.0]
    one, _ = copies(now)
    one.restored(base_ms)
    now[0] += 59.0
    assert one.way(4, builds=True) == "log"
    now[0] += 1.0
    assert one.way(5, builds=True) == "log and copy"


def test_the_next_driver_is_told_how_old_the_log_is(make_job):
    before = make_job(changelog=LOG)
    take(before)
    base_ms = before.checkpointer._materialization.base_ms
    before.checkpointer._materialization._base_at -= 40.0
    take(before)
    after = make_job(objects=before.objects, changelog=LOG, goes_on=True)
    assert after.checkpointer._materialization.base_ms == base_ms - 40_000
    after.now += 21.0
    take(after)
    assert after.fleet.ways == ["log and copy"]


def test_a_checkpoint_that_began_before_the_copy_was_there_does_not_list_it():
    now = [0.0]
    one, works = copies(now)
    now[0] = 100.0
    assert one.way(4, builds=True) == "log and copy"
    one.completed(4)
    assert one.way(5, builds=True) == "log"
    works.pop()()
    one.completed(5)
    assert one.unlisted == (4,)
    assert one.waits
    assert one.way(6, builds=True) == "log"
    one.completed(6)
    assert one.unlisted == ()


def test_the_failure_of_one_that_began_before_the_copy_was_there_leaves_it():
    now = [0.0]
    one, works = copies(now)
    now[0] = 100.0
    one.way(4, builds=True)
    one.completed(4)
    one.way(5, builds=True)
    works.pop()()
    one.aborted(5)
    assert one.unlisted == (4,)
    one.way(6, builds=True)
    one.aborted(6)
    assert one.unlisted == ()


def test_the_failure_of_a_copy_is_survived_and_too_many_in_a_row_end_the_run(make_job):
    job = make_job(changelog=LOG)
    for number in range(1, 20):
        job.fleet.errors[-number] = StoreUnavailable("down")
    for _ in range(4):
        take(job)
    assert (job.fleet.materialized, job.fleet.dropped) == ([4], [4])
    assert job.reporter.progress.changelog.failed == 1
    take(job)
    take(job)
    with pytest.raises(StoreUnavailable):
        take(job)
    assert job.fleet.materialized == [4, 7]


def test_a_server_that_is_lost_is_no_failure_of_a_copy(make_job):
    job = make_job(changelog=LOG)
    for number in range(1, 20):
        job.fleet.errors[-number] = ServerGone("gone")
    for _ in range(12):
        take(job)
    assert len(job.fleet.materialized) > 2
    assert job.reporter.progress.changelog.failed == 0


def test_a_checkpoint_that_fails_takes_its_copy_along_and_the_next_takes_another(make_job):
    job = make_job(changelog=LOG)
    for _ in range(3):
        take(job)
    job.fleet.errors[4] = StoreUnavailable("down")
    assert take(job) == []
    assert take(job) == [5]
    assert job.fleet.ways[3:] == ["log and copy", "log and copy"]
    assert job.fleet.materialized == [5]


def test_one_checkpoint_is_under_way_at_a_time(make_job):
    job = make_job(changelog=LOG, max_concurrent=4)
    job.fleet.gated = True
    job.commit("a")
    job.due()
    job.commit("b")
    job.due()
    assert job.fleet.snapshots == [1]
    job.fleet.gated = False
    job.fleet.gates[1].set()
    assert job.settle()[0] == 1


def test_what_an_epoch_staged_is_published_with_a_checkpoint_of_its_own(make_job):
    job = make_job(changelog=LOG, publishes_commits=True)
    for number in range(1, 4):
        job.commit(str(number))
        job.poll()
        assert job.settle() == [number]
    assert job.output.published == {n: [{"file": str(n)}] for n in range(1, 4)}
    assert job.poll() == []


def test_one_entry_of_the_log_commits_all_epochs_that_came_while_the_store_was_slow(make_job):
    job = make_job(changelog=LOG, publishes_commits=True)
    job.fleet.gated = True
    for number in range(1, 5):
        job.commit(str(number))
        job.poll()
    assert job.fleet.snapshots == [1]
    job.fleet.gated = False
    job.fleet.gates[1].set()
    assert job.settle()[0] == 1
    wait_until(lambda: (job.poll(), len(job.output.published) == 2)[1], 20, "the second")
    assert [entry.epoch for entry in job.entries(Checkpoint)] == [1, 4]
    assert job.output.published[2] == [{"file": str(n)} for n in range(2, 5)]


def test_after_a_checkpoint_that_failed_epochs_do_not_ask_for_one_at_once(make_job):
    job = make_job(changelog=LOG, publishes_commits=True)
    job.fleet.errors[1] = StoreUnavailable("down")
    job.commit("a")
    job.poll()
    job.settle()
    for _ in range(5):
        job.poll()
    assert job.fleet.snapshots == [1]
    job.now += 2
    job.poll()
    assert job.settle() == [2]
    assert job.files == ["a"]
