"""What a start begins from when an operator orders it, and why it is refused."""

import contextlib
import datetime
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from moorage_testing.manifests import checkpoint_manifest
from msgspec import UNSET
from msgspec.structs import replace as changed

from moorage.api.aggregates import count
from moorage.api.graph import JobGraph
from moorage.api.windows import Sliding, Tumbling
from moorage.driver.environment import StoppedWaiting
from moorage.driver.lineage import hold_lineage, seen_lineage
from moorage.driver.manifests import UID_MAPPING, WINDOWS, go_on_with_windows_of, windows_of
from moorage.driver.refusals import (
    AdoptRequired,
    DirectoryConflict,
    RestorePointChanged,
    RestorePointCorrupt,
    RestorePointIncompatible,
    RestorePointNotFound,
    StoreAccessRefused,
    StoreRefused,
)
from moorage.driver.reporter import Reporter
from moorage.driver.restore_point import (
    Choice,
    adopting,
    check_fits,
    check_operators,
    check_settings,
    choose,
    lay_sources,
    renamed,
)
from moorage.driver.runner import run_job
from moorage.driver.settings import DEFAULT_VARIABLE, JobSettings
from moorage.driver.types import JobProgress, Orders, RunOptions
from moorage.testing.environment import TestEnvironment
from moorage_api import StatefulSparkJob
from moorage_state.errors import StoreDenied, UserError
from moorage_state.memory import SNAPSHOT_FILE
from moorage_state.server.databases import check_owner
from moorage_state.snapshots import (
    CheckpointStore,
    Fence,
    FileRef,
    LineageLog,
    LogWriter,
    Manifest,
    OperatorState,
    Owner,
    RangeHandle,
    Released,
    Retire,
    Run,
    SavepointStore,
    encode_manifest,
    manifest_digest,
)
from moorage_state.state_backends.state_backend import BUILT_IN
from moorage_state.stores import LocalStore

NOW = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
ORDERS = Orders(cluster="prod", uid="uid-1", holder="clicks-3-driver attempt 3")


class Lineage:
    """A job's directory with a few checkpoints, and starts of the job under orders."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "job.py").touch()
        (path / "state").mkdir()
        self.objects = LocalStore(path / "state")
        self.store = CheckpointStore(self.objects)

    def settings(self, orders: Orders | None = ORDERS, **restore: Any) -> JobSettings:
        return JobSettings.of(self.job(**restore), self.path, None, orders)

    def job(self, scaling: dict[str, Any] | None = None, **restore: Any) -> StatefulSparkJob:
        spec = {
            "application": {"mainFile": f"local://{self.path}/job.py"},
            "scaling": scaling or {"parallelism": 1},
            "state": {
                "checkpointDir": f"file://{self.path}/state",
                "savepointDir": f"file://{self.path}/savepoints",
            },
            "restore": restore,
            "upgrade": {"mode": "LastCheckpoint"},
        }
        job = {
            "apiVersion": "moorage.dev/v1alpha1",
            "kind": "StatefulSparkJob",
            "metadata": {"name": "clicks", "namespace": "team"},
            "spec": spec,
        }
        return StatefulSparkJob.model_validate(job)

    def claim(self, orders: Orders = ORDERS, **options: Any) -> LogWriter:
        """Hold the lineage for a moment, as a start does."""
        settings = self.settings(orders)
        given = RunOptions(orders=orders, **options)
        with hold_lineage(settings, given, Reporter(lambda _p: None)) as (writer, _):
            return writer

    def checkpoints(self, writer: LogWriter, *ids: int) -> None:
        for checkpoint_id in ids:
            self.store.complete(writer, manifest(writer, checkpoint_id), NOW)

    def choose(self, writer: LogWriter, orders: Orders, **restore: Any) -> Choice:
        return choose(self.store, writer.entries, self.settings(orders, **restore))

    def follow(self, writer: LogWriter, choice: Choice, orders: Orders) -> None:
        """What a run writes when it has restored."""
        order_id = orders.order_id if choice.explicit else ""
        writer.append(
            Run(writer.fence, 0, choice.path, explicit=choice.explicit, order_id=order_id)
        )

    def savepoint(self, writer: LogWriter) -> str:
        """A savepoint; its address."""
        url = f"file://{self.path}/savepoint"
        store = SavepointStore(url, create=True)
        store.begin("attempt")
        made = manifest(writer, 9)
        store.create(_as_savepoint(made))
        return url


def manifest(writer: LogWriter, checkpoint_id: int) -> Manifest:
    return checkpoint_manifest(writer.lineage, checkpoint_id, fence=writer.fence)


def _as_savepoint(made: Manifest) -> Manifest:
    return changed(made, kind="savepoint", name="savepoint")


@pytest.fixture
def lineage(tmp_path) -> Lineage:
    return Lineage(tmp_path)


@pytest.fixture
def started(lineage) -> LogWriter:
    writer = lineage.claim()
    lineage.checkpoints(writer, 1, 2, 3)
    return writer


def _known(checkpoint_id: int, path: Path) -> Orders:
    """What an operator orders that has heard of this checkpoint."""
    return replace(ORDERS, path=f"file://{path}/state/chk-{checkpoint_id}")


@pytest.mark.parametrize("there", [(), (1, 2)], ids=["emptied", "set back"])
def test_a_directory_that_never_had_the_newest_checkpoint_is_not_begun_with(lineage, there):
    """It was emptied, or state.s3.endpoint names another server: nobody chose to lose that."""
    writer = lineage.claim()
    lineage.checkpoints(writer, *there)
    newest = f"chk-{there[-1]}" if there else "none"
    with pytest.raises(RestorePointNotFound, match=rf"checkpoint=chk-3 newest there={newest} "):
        lineage.choose(writer, _known(3, lineage.path))
    again = lineage.claim()
    with pytest.raises(RestorePointNotFound):
        lineage.choose(again, _known(3, lineage.path))


def test_an_endpoint_that_was_edited_alone_names_another_directory(lineage):
    settings = lineage.settings(
        replace(ORDERS, path="s3://bucket/clicks/chk-3?endpoint=http://a:1")
    )
    edited = replace(settings, checkpoint_dir="s3://bucket/clicks?endpoint=http://b:2")
    with pytest.raises(RestorePointNotFound, match="checkpoint=chk-3 newest there=none"):
        choose(lineage.store, lineage.claim().entries, edited)


def test_the_newest_that_was_heard_of_need_not_be_the_newest_nor_be_there_any_more(
    lineage, started
):
    assert lineage.choose(started, _known(2, lineage.path)).path == "chk-3"
    started.append(Retire(started.fence, 3))
    assert lineage.choose(started, _known(3, lineage.path)).path == "chk-2"


def test_what_was_heard_of_another_directory_tells_nothing_of_this_one(lineage):
    writer = lineage.claim()
    for orders in (replace(ORDERS, path="s3://bucket/before/chk-9"), ORDERS):
        assert lineage.choose(writer, orders).manifest is None


@pytest.mark.parametrize("mode", ["Empty", "Path"])
def test_who_chose_to_go_on_without_what_is_gone_is_not_asked_again(lineage, mode):
    writer = lineage.claim()
    lineage.checkpoints(writer, 1)
    orders = replace(ORDERS, mode=mode, path="chk-1" if mode == "Path" else "", order_id="o-1")
    choice = lineage.choose(writer, orders, acknowledgeStateLoss=True)
    lineage.follow(writer, choice, orders)
    after = lineage.choose(writer, _known(3, lineage.path))
    assert after.path == ("chk-1" if mode == "Path" else None)
    # Nor is who begins there once more, with nothing completed in between.
    lineage.follow(writer, after, _known(3, lineage.path))
    assert lineage.choose(writer, _known(3, lineage.path)).path == after.path


@pytest.mark.parametrize("retired", [(), (4,), (4, 5)])
def test_a_choice_of_long_ago_admits_no_directory_that_was_set_back(lineage, started, retired):
    """Each upgrade by a savepoint is one."""
    upgrade = replace(ORDERS, mode="Path", path=lineage.savepoint(started), order_id="up-1")
    lineage.follow(started, lineage.choose(started, upgrade), upgrade)
    lineage.checkpoints(started, 4, 5, 6)
    for checkpoint_id in retired:
        started.append(Retire(started.fence, checkpoint_id))
    assert lineage.choose(started, _known(6, lineage.path)).path == "chk-6"
    with pytest.raises(RestorePointNotFound, match="checkpoint=chk-9000 newest there=chk-6 "):
        lineage.choose(started, _known(9000, lineage.path))


def test_an_order_to_go_back_is_followed_once(lineage, started):
    orders = replace(ORDERS, mode="Path", path="chk-1", order_id="o-1")
    choice = lineage.choose(started, orders)
    assert (choice.path, choice.explicit) == ("chk-1", True)
    lineage.follow(started, choice, orders)
    lineage.checkpoints(started, 4)
    again = lineage.choose(started, orders)
    assert (again.path, again.explicit) == ("chk-4", False)
    assert "o-1" in again.warnings[0]
    other = lineage.choose(started, replace(orders, order_id="o-2"))
    assert (other.path, other.explicit) == ("chk-1", True)


@pytest.mark.parametrize(
    ("directory", "path"),
    [
        ("s3://bucket/clicks?endpoint=http://a:1", "s3://bucket/clicks/chk-1?endpoint=http://a:1"),
        (
            "s3://bucket/clicks?endpoint=http://a:1",
            "s3://bucket/clicks/chk-1?endpoint=http://a:1&region=eu",
        ),
        ("file:///home/josé/state", "file:///home/jos%C3%A9/state/chk-1"),
    ],
    ids=["server", "region", "quoted"],
)
def test_a_checkpoint_of_the_lineage_is_known_by_its_whole_address(
    lineage, started, directory, path
):
    orders = replace(ORDERS, mode="Path", path=path, order_id="nonce-1")
    settings = replace(
        lineage.settings(orders, mode="Path", path=path, claimMode="Claim"),
        checkpoint_dir=directory,
    )
    choice = choose(lineage.store, started.entries, settings)
    assert (choice.path, choice.address) == ("chk-1", "")


@pytest.mark.parametrize(
    ("order_id", "claim"), [("nonce-0-ab12", True), ("up-3-clicks", False), ("", False)]
)
def test_only_what_the_manifest_itself_names_is_claimed(lineage, order_id, claim):
    orders = replace(ORDERS, mode="Path", path="file:///final", order_id=order_id)
    given = {"mode": "Path", "path": "file:///initial", "claimMode": "Claim"}
    assert lineage.settings(orders, **given).restore.claim == claim
    for asked, its in (("file:///initial", True), ("file:///friday", False)):
        settings = JobSettings.of(lineage.job(**given), lineage.path, asked, None)
        assert settings.restore.claim == its


def test_a_start_that_fails_before_it_restored_follows_the_order_again(lineage, started):
    orders = replace(ORDERS, mode="Path", path="chk-1", order_id="o-1")
    lineage.choose(started, orders)
    started.append(Run(started.fence, 0, "chk-3"))
    assert lineage.choose(started, orders).path == "chk-1"


def test_an_order_that_was_followed_without_a_checkpoint_since_still_holds(lineage, started):
    orders = replace(ORDERS, mode="Path", path="chk-1", order_id="o-1")
    lineage.follow(started, lineage.choose(started, orders), orders)
    assert lineage.choose(started, orders).path == "chk-1"
    assert lineage.choose(started, ORDERS).path == "chk-1"


def test_the_manifests_own_restore_does_not_count_beside_an_order(lineage, started):
    choice = lineage.choose(started, ORDERS, mode="Path", path="chk-1", nonce=5)
    assert choice.path == "chk-3"


def test_an_empty_start_needs_a_word_of_a_person(lineage, started):
    orders = replace(ORDERS, mode="Empty", order_id="o-1")
    with pytest.raises(UserError, match="acknowledgeStateLoss"):
        lineage.choose(started, orders)
    choice = lineage.choose(started, orders, acknowledgeStateLoss=True)
    assert (choice.manifest, choice.explicit) == (None, True)
    lineage.follow(started, choice, orders)
    assert lineage.choose(started, orders).manifest is None
    lineage.checkpoints(started, 4)
    assert lineage.choose(started, orders).path == "chk-4"


@pytest.mark.parametrize("kind", ["checkpoint", "savepoint"])
@pytest.mark.scenario(31)
def test_the_chosen_point_must_be_the_one_that_lies_there(lineage, started, kind):
    path, made = "chk-2", manifest(started, 2)
    if kind == "savepoint":
        path, made = lineage.savepoint(started), _as_savepoint(manifest(started, 9))
    digest = manifest_digest(encode_manifest(made))
    orders = replace(ORDERS, mode="Path", path=path, digest=digest, order_id="o")
    assert lineage.choose(started, orders).manifest == made
    with pytest.raises(RestorePointChanged, match=r"chosen=sha256:other; choose again"):
        lineage.choose(started, replace(orders, digest="sha256:other"))


@pytest.mark.parametrize("path", ["chk-77", "nowhere", "file:///none/here"])
def test_a_point_that_is_not_there_is_named(lineage, started, path):
    orders = replace(ORDERS, mode="Path", path=path, order_id="o")
    with pytest.raises(RestorePointNotFound, match=path.removeprefix("file://")):
        lineage.choose(started, orders)


@pytest.mark.scenario(29)
def test_who_names_a_savepoint_that_is_not_there_is_not_told_to_make_a_directory(lineage, started):
    (lineage.path / "savepoints" / "begun").mkdir(parents=True)
    SavepointStore(f"file://{lineage.path}/savepoints/begun").begin("somebody")
    for name, why in (("lunch", "does not exist"), ("begun", "begun and never completed")):
        orders = replace(ORDERS, mode="Path", path=name, order_id="o")
        expected = f"restore=.*/{name}: .*{why}: path=.*/savepoints/{name}; .*moorage snapshots ls"
        with pytest.raises(RestorePointNotFound, match=expected) as caught:
            lineage.choose(started, orders)
        assert "create it" not in str(caught.value)


@pytest.mark.scenario(30)
@pytest.mark.parametrize("damage", [b"damaged", b""])
def test_a_damaged_savepoint_is_not_said_to_have_an_older_one(lineage, started, damage):
    url = lineage.savepoint(started)
    (lineage.path / "savepoint" / "MANIFEST").write_bytes(damage)
    orders = replace(ORDERS, mode="Path", path=url, order_id="o")
    with pytest.raises(RestorePointCorrupt, match="use another savepoint") as caught:
        lineage.choose(started, orders)
    assert "older" not in str(caught.value)


@pytest.mark.usefixtures("started")
def test_a_driver_tells_from_its_start_what_earlier_ones_left_and_how_many_stay(lineage):
    class Waits:
        def open(self, *_args: Any) -> Any:
            raise StoppedWaiting

    (lineage.path / "job.py").write_text("def build(env): ...")
    heard: list[JobProgress] = []
    options = RunOptions(orders=ORDERS, environment=Waits())  # type: ignore[arg-type]  # a stand-in
    run_job(lineage.job(), lineage.path, options, heard.append)
    assert [one.checkpoint_id for one in heard[-1].earlier] == [3, 2, 1]
    assert heard[-1].retain == lineage.settings().retain > 1


@pytest.mark.usefixtures("started")
@pytest.mark.scenario(32)
def test_what_the_manifest_alone_forbids_is_refused_before_spark_is_started(lineage):
    class Never:
        def open(self, *_args: Any) -> Any:
            raise AssertionError("spark was started")

    (lineage.path / "job.py").write_text("def build(env): ...")
    job = lineage.job({"parallelism": 1, "maxParallelism": 256})
    options = RunOptions(orders=ORDERS, environment=Never())  # type: ignore[arg-type]  # a stand-in
    with pytest.raises(RestorePointIncompatible, match="checkpoint=128 job=256"):
        run_job(job, lineage.path, options, lambda _progress: None)


@pytest.mark.scenario(30)
def test_a_damaged_point_has_a_code_of_its_own(lineage, started):
    (lineage.path / "state" / "chk-3" / "MANIFEST").write_bytes(b"damaged")
    with pytest.raises(RestorePointCorrupt, match="chk-3"):
        lineage.choose(started, ORDERS, maxFallbackAge="0s")
    orders = replace(ORDERS, mode="Path", path="chk-3", order_id="o")
    with pytest.raises(RestorePointCorrupt):
        lineage.choose(started, orders)


@pytest.mark.scenario(31)
@pytest.mark.scenario(32)
def test_another_number_of_key_groups_or_another_hash_is_refused_by_its_name(lineage, started):
    settings = lineage.settings()
    point = manifest(started, 9)
    check_fits(point, JobGraph(), settings)
    for field, value, told in (
        ("max_parallelism", 256, "maxParallelism is fixed .* checkpoint=256 job=128"),
        ("key_hash", "flink-murmur", "keyHash is fixed .* checkpoint=flink-murmur"),
    ):
        with pytest.raises(RestorePointIncompatible, match=told):
            check_fits(changed(point, **{field: value}), JobGraph(), settings)


def test_a_max_parallelism_that_is_not_set_is_that_of_the_snapshot(lineage, started):
    point = changed(manifest(started, 9), max_parallelism=720)
    settings = replace(lineage.settings(), derives_max_parallelism=True)
    assert adopting(settings, point).max_parallelism == 720
    assert adopting(settings, None).max_parallelism == settings.max_parallelism
    check_fits(point, JobGraph(), adopting(settings, point))
    assert adopting(replace(settings, derives_max_parallelism=False), point).max_parallelism == 128
    with pytest.raises(RestorePointIncompatible, match="parallelism=721 maxParallelism=720"):
        adopting(replace(settings, parallelism=721), point)


def written_by(point, owner):
    """The point with one subtask's native files of a backend."""
    name = SNAPSHOT_FILE if owner == "hashmap" else "1.sst"
    files = [FileRef(name=name, key="k", size=1, sha256="0" * 64, shared=False)]
    handle = RangeHandle(
        uid="counts",
        start=0,
        end=127,
        epoch=1,
        digest="",
        backend_uuid="u",
        files=files,
        bytes_total=1,
        backend=UNSET if owner in ("rocksdb", "hashmap") else owner,
    )
    state = OperatorState(parallelism=1, key_types=["int"], states=[], subtasks=[handle])
    return changed(point, operators={"counts": state})


def test_another_default_of_the_machine_leaves_a_job_the_backend_of_its_state(
    lineage, started, monkeypatch
):
    monkeypatch.setenv(DEFAULT_VARIABLE, "jobmanager")
    settings = lineage.settings(None)
    point = manifest(started, 9)
    assert settings.backend.identifier == "hashmap"
    assert settings.max_state_size is not None, "the default's checkpoints are the driver's"
    for owner in ("rocksdb", "hashmap"):
        assert adopting(settings, written_by(point, owner)).max_state_size is None, owner
    options = {"state.checkpoint-storage": "jobmanager"}
    named = replace(settings, open_backend_options=options)
    assert adopting(named, written_by(point, "hashmap")).max_state_size == 5 << 20
    for owner, found in (("rocksdb", "rocksdb"), ("hashmap", "hashmap"), ("sqlite", "hashmap")):
        kept = adopting(settings, written_by(point, owner)).backend.identifier
        assert kept == found, owner
    assert adopting(settings, point).backend.identifier == "hashmap", "a canonical savepoint"
    with pytest.raises(RestorePointIncompatible, match="written_by=sqlite opened_by=hashmap"):
        check_settings(written_by(point, "sqlite"), settings)


@pytest.mark.parametrize("reader", sorted(BUILT_IN))
@pytest.mark.parametrize("owner", sorted(BUILT_IN))
def test_what_a_built_in_backend_wrote_any_backend_goes_on_with(owner, reader):
    check_owner(owner, reader, "checkpoint=1")
    check_owner(owner, "sqlite", "checkpoint=1")
    with pytest.raises(UserError, match=f"written_by=sqlite opened_by={reader}"):
        check_owner("sqlite", reader, "checkpoint=1")


def test_a_backend_that_is_named_or_that_an_operator_chose_is_the_jobs(
    lineage, started, monkeypatch
):
    monkeypatch.setenv(DEFAULT_VARIABLE, "hashmap")
    point = written_by(manifest(started, 9), "hashmap")
    assert lineage.settings().backend.identifier == "rocksdb", "no environment counts there"
    assert adopting(lineage.settings(), point).backend.identifier == "rocksdb"
    job = lineage.job()
    state = job.spec.state.model_copy(update={"backend": "rocksdb"})
    named = job.model_copy(update={"spec": job.spec.model_copy(update={"state": state})})
    settings = JobSettings.of(named, lineage.path)
    assert adopting(settings, point).backend.identifier == "rocksdb"


@pytest.mark.scenario(31)
def test_a_point_of_a_newer_moorage_is_incompatible(lineage, started):
    url = lineage.savepoint(started)
    file = lineage.path / "savepoint" / "MANIFEST"
    body = file.read_bytes().split(b"\n", 1)[1].replace(b'"format": 1', b'"format": 9', 1)
    import hashlib

    header = f"MOORAGE-MANIFEST 9 sha256:{hashlib.sha256(body).hexdigest()} {len(body)}\n"
    file.write_bytes(header.encode() + body)
    orders = replace(ORDERS, mode="Path", path=url, order_id="o")
    with pytest.raises(RestorePointIncompatible, match="newer moorage"):
        lineage.choose(started, orders)


# -- who may use the directory -------------------------------------------------------------------


def test_a_new_object_takes_a_released_lineage_and_no_other(lineage, started):
    other = replace(ORDERS, uid="uid-2")
    with pytest.raises(AdoptRequired, match=rf"uid-1.*lineage={started.lineage}"):
        lineage.claim(other)
    with pytest.raises(AdoptRequired):
        lineage.claim(replace(other, adopt_lineage="another"))
    started.append(Released(started.fence))
    assert lineage.claim(other).owner.uid == "uid-2"


def test_a_lineage_that_is_named_is_adopted(lineage, started):
    other = replace(ORDERS, uid="uid-2", adopt_lineage=started.lineage)
    assert lineage.claim(other).lineage == started.lineage
    assert lineage.claim(other).fence == 3


def test_another_cluster_is_another_job(lineage, started):
    with pytest.raises(DirectoryConflict, match=r"prod/team/clicks.*asking=test/team/clicks"):
        lineage.claim(replace(ORDERS, cluster="test", adopt_lineage=started.lineage))


def test_an_operators_driver_takes_the_directory_from_a_living_one(lineage):
    settings, options = lineage.settings(), RunOptions(orders=ORDERS)
    said: list[JobProgress] = []
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(hold_lineage(settings, options, Reporter(said.append)))
        with (
            pytest.raises(StoreRefused, match="in use by another run"),
            hold_lineage(settings, RunOptions(), Reporter(said.append)),
        ):
            pass
    fences = [e for _, e in LineageLog.open(lineage.objects).read() if isinstance(e, Fence)]
    assert [(f.fence, f.holder) for f in fences] == [(1, ORDERS.holder), (2, ORDERS.holder)]
    assert (said[-1].fence, said[-1].lineage != "") == (2, True)


def test_whoever_asked_hears_that_the_fence_is_lost(lineage):
    said: list[str] = []
    first = lineage.claim(fenced=said.append)
    lineage.claim()
    with pytest.raises(Exception, match="took over"):
        first.refresh()
    assert len(said) == 1


def test_the_fence_is_watched_while_the_lineage_is_held_and_no_longer(lineage):
    def watches():
        return [one for one in threading.enumerate() if one.name == "fence-watch"]

    before = watches()
    options = RunOptions(orders=ORDERS)
    with hold_lineage(lineage.settings(), options, Reporter(lambda _p: None)):
        (watch,) = [one for one in watches() if one not in before]
    watch.join(5)
    assert not watch.is_alive()


def test_a_store_that_refuses_has_a_code_of_its_own(lineage, monkeypatch):
    def denied(*_args: Any, **_kwargs: Any) -> None:
        raise StoreDenied("s3 store refuses: code=AccessDenied")

    monkeypatch.setattr(LogWriter, "claim", denied)
    with pytest.raises(StoreAccessRefused, match="AccessDenied") as caught:
        lineage.claim()
    assert caught.value.code == "store_denied"


def test_a_directory_that_is_not_mounted_is_no_empty_one(lineage):
    settings = replace(lineage.settings(), checkpoint_dir=f"file://{lineage.path}/none/state")
    with (
        pytest.raises(StoreRefused, match="mount or make"),
        hold_lineage(settings, RunOptions(orders=ORDERS), Reporter(lambda _p: None)),
    ):
        pass


def test_an_owner_is_who_the_order_names(lineage):
    assert lineage.claim().owner == Owner(
        "prod", "team", "clicks", "uid-1", lineage.claim().lineage
    )


def test_an_operator_under_another_uid_keeps_its_watermark(started):
    state = OperatorState(parallelism=1, key_types=["int"], states=[], subtasks=[])
    watermarks = {"clicks": 900, "old": 700, "": 700}
    made = changed(manifest(started, 1), operators={"old": state}, watermarks=watermarks)
    again = renamed(made, {"old": "new", "clicks": "other"})
    assert dict(again.watermarks) == {"clicks": 900, "new": 700, "": 700}


@pytest.mark.parametrize(
    ("mapping", "uids"),
    [
        ({"a": "b", "b": "a", "c": "d"}, ["a", "b", "d"]),
        ({"a": "b"}, ["a", "b", "c"]),
        ({"a": "b", "b": "e"}, ["a", "e", "c"]),
    ],
)
def test_operators_that_have_their_new_uids_keep_them_when_the_mapping_changes(
    started, mapping, uids
):
    swapped = {"a": "b", "b": "a"}
    operators = {uid: _stored(uid) for uid in ("a", "b", "c")}
    before = changed(manifest(started, 1), operators=operators, extra={UID_MAPPING: swapped})
    after = renamed(before, mapping)
    assert list(after.operators) == uids
    handles = [handle for state in after.operators.values() for handle in state.subtasks]
    assert [handle.uid for handle in handles if isinstance(handle, RangeHandle)] == uids
    assert list(renamed(before, swapped).operators) == ["a", "b", "c"]


def windowed(uid, windows):
    """The graph of a job with one operator over these windows."""
    env = TestEnvironment()
    rows = env.read_stream("in", "json", schema="user string, at long").with_event_time("at")
    rows.key_by("user").window(windows).aggregate(uid=uid, n=count())
    return env.graph


def test_windows_of_earlier_versions_are_remembered_by_every_later_manifest(started):
    graph, extra = windowed("old", Tumbling("1h")), {}
    for windows in (Tumbling("30m"), Sliding("1h", "15m"), Tumbling("1h", time="processing")):
        made = changed(manifest(started, 1), extra={WINDOWS: windows_of(graph)})
        extra = made.extra[WINDOWS]
        graph = windowed("old", windows)
        go_on_with_windows_of(graph, made)
    # Those of the other time are no more: nothing would look at their timers.
    (operator,) = graph.operators
    function: Any = operator.function
    assert (function.by_end, function.earlier) == (Tumbling("1h", time="processing"), ())
    assert extra["old"] == [
        ["1h", "15m", "0s", "event"],
        ["30m", "30m", "0s", "event"],
        ["1h", "1h", "0s", "event"],
    ]
    state = OperatorState(parallelism=1, key_types=["string"], states=[], subtasks=[])
    made = changed(manifest(started, 1), operators={"old": state}, extra={WINDOWS: extra})
    graph = windowed("new", Tumbling("1h"))
    go_on_with_windows_of(graph, renamed(made, {"old": "new"}))
    function = graph.operators[0].function
    assert function.earlier == (Sliding("1h", "15m"), Tumbling("30m"))
    go_on_with_windows_of(graph, None)
    assert function.earlier == ()


def test_a_lineage_whose_job_ended_and_kept_nothing_begins_empty_only_if_that_is_asked_for(lineage):
    writer = lineage.claim()
    lineage.checkpoints(writer, 1, 2)
    lineage.store.retire(writer, keep=None)
    with pytest.raises(RestorePointNotFound, match="every checkpoint of this lineage was retired"):
        lineage.choose(writer, ORDERS)
    chosen = lineage.choose(writer, replace(ORDERS, mode="Empty", order_id="o-1"))
    assert (chosen.manifest, chosen.explicit) == (None, True)


def test_state_of_operators_that_are_gone_is_left_behind_only_where_the_job_says_so(lineage):
    writer = lineage.claim()
    made = checkpoint_manifest(writer.lineage, 1, operators={"counts": _stored("counts")})
    with pytest.raises(RestorePointIncompatible, match=r"no longer has: uids=.'counts'") as refused:
        check_operators(made, ["joined"], lineage.settings())
    assert "uidMapping (counts: NEW_UID)" in str(refused.value)
    check_operators(made, ["joined", "counts"], lineage.settings())
    check_operators(made, ["joined"], lineage.settings(allowNonRestoredState=True))
    check_operators(renamed(made, {"counts": "joined"}), ["joined"], lineage.settings())


def _stored(uid: str) -> OperatorState:
    handle = RangeHandle(
        uid=uid, start=0, end=15, epoch=1, digest="d", backend_uuid="b", files=[], bytes_total=0
    )
    return OperatorState(parallelism=1, key_types=["string"], states=[], subtasks=[handle])


def test_the_sources_of_a_point_are_laid_as_a_start_lays_them(lineage, tmp_path):
    writer = lineage.claim()
    source = {
        "query_id": "q",
        "metadata": '{"id": "q"}',
        "batch_id": 0,
        "header": '{"batchWatermarkMs": 0}',
        "previous_header": None,
        "inputs": {"events": {"offset": "{}", "previous": None, "files": {}}},
    }
    choice = Choice(checkpoint_manifest(writer.lineage, 1, source=source), explicit=False)
    folder, settings = tmp_path / "spark", lineage.settings()
    with pytest.raises(RestorePointIncompatible, match=r"not in the job: dropped=.'events'"):
        lay_sources(choice, lineage.objects, folder, ["orders"], settings)
    assert not folder.exists()
    log = lay_sources(choice, lineage.objects, folder, ["events", "orders"], settings)
    assert log is not None
    assert (folder / "offsets" / "0").exists()


@pytest.mark.usefixtures("started")
def test_a_lineage_is_looked_at_without_a_lock_or_a_claim(lineage):
    before = sorted(lineage.path.rglob("*"))
    store, entries = seen_lineage(lineage.settings())
    assert choose(store, entries, lineage.settings()).path == "chk-3"
    with pytest.raises(DirectoryConflict, match="belongs to another job"):
        seen_lineage(lineage.settings(replace(ORDERS, cluster="test")))
    # It may be ordered to adopt it.
    seen_lineage(lineage.settings(replace(ORDERS, uid="uid-2")))
    assert sorted(lineage.path.rglob("*")) == before


def test_a_directory_that_a_start_makes_is_an_empty_lineage(lineage):
    (lineage.path / "state").rmdir()
    _, entries = seen_lineage(lineage.settings())
    assert entries == ()
    assert not (lineage.path / "state").exists()
    settings = replace(lineage.settings(), checkpoint_dir=f"file://{lineage.path}/nas/state")
    with pytest.raises(StoreRefused, match="mount or make"):
        seen_lineage(settings)
