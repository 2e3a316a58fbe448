"""A preflight looks whether all that its restore point consists of is still there."""

import pytest
from moorage_testing.savepoint_dirs import OWNER, checkpoint, lineage, make_savepoint

from moorage.driver.preflight import Preflight, seen_whole
from moorage.driver.refusals import RestorePointCorrupt, RestorePointNotFound
from moorage.driver.settings import JobSettings
from moorage.driver.types import Orders
from moorage_api import StatefulSparkJob
from moorage_state.snapshots import CheckpointStore, checkpoint_path
from moorage_state.stores import LocalStore


class Directory:
    """A lineage with two checkpoints of one object each, made a minute after each other."""

    def __init__(self, path):
        self.path = path
        (path / "job.py").touch()
        (path / "state").mkdir()
        self.store = LocalStore(path / "state")
        self.writer = lineage(self.store)
        for number in (1, 2):
            checkpoint(self.store, self.writer, number)

    def look(self, clock=lambda: 0.0, mode="Latest", path=""):
        """As the pod of an operator does that says what is to be restored."""
        spec = {
            "application": {"mainFile": f"local://{self.path}/job.py"},
            "state": {"checkpointDir": f"file://{self.path}/state"},
            "scaling": {"parallelism": 1, "maxParallelism": 16},
            "restore": {"maxFallbackAge": "1h", "acknowledgeStateLoss": True},
            "upgrade": {"mode": "LastCheckpoint"},
        }
        job = StatefulSparkJob.model_validate(
            {
                "apiVersion": "moorage.dev/v1alpha1",
                "kind": "StatefulSparkJob",
                "metadata": {"name": OWNER.name, "namespace": OWNER.namespace},
                "spec": spec,
            }
        )
        orders = Orders(OWNER.cluster, OWNER.uid, "preflight", mode=mode, path=path, order_id="1")
        return seen_whole(JobSettings.of(job, self.path, None, orders), clock)

    def object_of(self, checkpoint_id):
        (found,) = (self.path / "state" / checkpoint_path(checkpoint_id)).rglob("*CURRENT*")
        return found


@pytest.fixture
def directory(tmp_path):
    return Directory(tmp_path)


def test_what_is_whole_passes_with_the_number_of_its_objects(directory):
    assert directory.look() == (1, 1)


def shorten(path):
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("damage", "problem"),
    [(lambda path: path.unlink(), "is missing"), (shorten, "bytes, not")],
    ids=["missing", "shortened"],
)
def test_an_object_that_is_not_as_it_was_is_refused_though_an_older_point_is_whole(
    directory, damage, problem
):
    damage(directory.object_of(2))
    with pytest.raises(RestorePointCorrupt, match=problem) as caught:
        directory.look()
    assert checkpoint_path(2) in caught.value.path
    assert "take a savepoint of it" in caught.value.advice


def test_only_the_point_that_a_start_would_restore_is_looked_at(directory):
    directory.object_of(1).unlink()
    assert directory.look() == (1, 1)
    with pytest.raises(RestorePointCorrupt, match="is missing"):
        directory.look(mode="Path", path="chk-1")


def test_a_manifest_that_is_gone_is_refused_as_well(directory):
    (directory.path / "state" / checkpoint_path(2) / "MANIFEST").unlink()
    with pytest.raises(RestorePointCorrupt, match="manifest is missing"):
        directory.look()


def test_a_savepoint_that_is_named_is_looked_at_where_it_lies(directory):
    saved = directory.path / "saved"
    saved.mkdir()
    make_savepoint(LocalStore(saved))
    assert directory.look(mode="Path", path=f"file://{saved}") == (3, 3)
    next(saved.rglob("1.parquet")).unlink()
    with pytest.raises(RestorePointCorrupt, match="is missing"):
        directory.look(mode="Path", path=f"file://{saved}")


class Meanwhile:
    """A clock that has something happen when the first object is about to be looked at."""

    def __init__(self, act):
        self.act = act
        self.asked = 0

    def __call__(self):
        self.asked += 1
        if self.asked == 2:
            self.act()
        return 0.0


def go_on(directory):
    """What the driver that runs does beside a preflight: another one, and the oldest go."""
    checkpoint(directory.store, directory.writer, 3)
    CheckpointStore(directory.store).retire(directory.writer, 1)


def test_one_that_the_running_driver_lets_go_meanwhile_is_followed_by_the_next(directory):
    clock = Meanwhile(lambda: go_on(directory))
    assert directory.look(clock) == (1, 1)
    assert not (directory.path / "state" / checkpoint_path(2)).exists()


def test_damage_of_the_next_one_is_found_as_well(directory):
    def lose():
        go_on(directory)
        directory.object_of(3).unlink()

    with pytest.raises(RestorePointCorrupt, match="is missing"):
        directory.look(Meanwhile(lose))


def test_a_named_one_that_is_let_go_meanwhile_is_told_as_such(directory):
    clock = Meanwhile(lambda: go_on(directory))
    with pytest.raises(RestorePointNotFound, match="no such checkpoint"):
        directory.look(clock, mode="Path", path="chk-2")


def test_what_would_take_too_long_is_left_and_said(directory):
    times = iter([0.0, 61.0])
    assert directory.look(lambda: next(times)) == (0, 1)
    found = Preflight(("counts",), "chk-2", 70, (), (), objects=3, unseen=2)
    assert "of whose 3 objects 1 were looked at in 60 s" in found.text


def test_nothing_to_restore_is_nothing_to_look_at(directory):
    assert directory.look(mode="Empty") == (0, 0)
