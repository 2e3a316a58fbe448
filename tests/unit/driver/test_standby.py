"""A driver that stands by: what it begins from, what it keeps to itself, and how that ends."""

import dataclasses
import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from moorage_testing.checkpointed_job import OWNER
from moorage_testing.manifests import checkpoint_manifest
from msgspec.structs import replace

from moorage.api.graph import JobGraph
from moorage.api.sinks import SinkRestore, StageId
from moorage.driver import rewinds, runner
from moorage.driver.query import BatchCallback, Halted
from moorage.driver.refusals import RestorePointCorrupt
from moorage.driver.reporter import Reporter
from moorage.driver.request_handler import let_go
from moorage.driver.requests import (
    CheckpointRequest,
    PromoteRequest,
    Requests,
    RescaleRequest,
    SavepointRequest,
    Stopped,
    StopRequest,
)
from moorage.driver.runner import run_job
from moorage.driver.standby import FIRST_RUN, HeldSink, NoCheckpoints, Standby, StandbyRefused
from moorage.driver.stream_run import StreamRun
from moorage.driver.types import Orders, RunOptions, RunOutcome
from moorage.engine.range_access import ExecutorLost
from moorage_state.errors import CorruptState, Fenced, UserError, VersionGone
from moorage_state.server.local_files import run_order
from moorage_state.snapshots import CheckpointStore, LogWriter, run_token
from moorage_state.stores import LocalStore

from .test_request_handler import Running, _no_waiting  # noqa: F401  a fixture
from .test_retention import job_of, settings_of

NOW = datetime(2026, 1, 2, tzinfo=UTC)
BESIDE = Orders("local", "local", "clicks-2-driver", standby=True)


@pytest.fixture
def leader(tmp_path):
    """The driver that has the lineage, and one checkpoint."""
    settings = settings_of(tmp_path, {})
    (tmp_path / "state").mkdir()
    store = LocalStore(tmp_path / "state")
    owner = replace(
        OWNER,
        cluster=settings.cluster,
        namespace=settings.namespace,
        name=settings.name,
        uid=settings.uid,
    )
    writer = LogWriter.claim(store, owner, "leader")
    completed(writer, store, 1)
    return writer, store, settings


def completed(writer, store, number):
    made = checkpoint_manifest(
        writer.lineage, number, fence=writer.fence, epoch=10 * number, created_at=NOW
    )
    CheckpointStore(store).complete(writer, made, NOW)


def objects(store):
    return {info.key for info in store.list("")}


def test_it_begins_from_what_is_newest_each_time_and_takes_hold_of_nothing(leader):
    writer, store, settings = leader
    before = objects(store)
    standby = Standby(settings)
    assert standby.choose().path == "chk-1"
    assert standby.log().lineage == standby.lineage == writer.lineage
    assert objects(store) == before
    completed(writer, store, 2)
    assert standby.choose().path == "chk-2"
    writer.refresh()  # nobody has claimed it


def broken(*ids):
    return {number: CorruptState("object is missing", f"chk-{number}", "") for number in ids}


def test_checkpoints_that_are_gone_before_they_are_fetched_are_told_of_from_the_second_on(leader):
    writer, store, settings = leader
    standby = Standby(settings)
    completed(writer, store, 2)
    assert not standby.choose(broken(1)).warnings, "it is there, and damaged"
    for number in (3, 4):
        completed(writer, store, number)
    CheckpointStore(store).retire(writer, keep=2)
    assert not standby.choose(broken(1)).warnings
    choice = standby.choose(broken(1, 2))
    assert choice.path == "chk-4"
    (told,) = choice.warnings
    assert told.startswith("2 checkpoints were let go before all of them was fetched: give the")
    assert "spec.checkpoint.retain.count" in told


def test_what_a_choice_says_is_told_while_it_is_restored(leader):
    reporter, choice = Reporter(lambda _: None), Standby(leader[2]).choose()

    def fetch(*_args: Any) -> Any:
        assert (reporter.progress.phase, reporter.progress.message) == ("restoring", "it is late")
        raise CorruptState("object is missing", "chk-1", "")

    run: Any = StreamRun.__new__(StreamRun)
    run._c = SimpleNamespace(reporter=reporter, standby=object(), fleet=SimpleNamespace(open=fetch))
    run._choice = dataclasses.replace(choice, warnings=("it is late",))
    run._output = SimpleNamespace(admit=lambda _manifest: ())
    run._checkpointer, run._run = SimpleNamespace(builds=False), "f1r1000001"
    with pytest.raises(RestorePointCorrupt):
        run._restore(choice.manifest)


def test_its_runs_are_older_than_those_of_whoever_claims_next_and_nobody_elses(leader):
    writer, store, settings = leader
    own = run_token(Standby(settings).log().fence, FIRST_RUN)
    leaders = [run_token(writer.fence, number) for number in range(3)]
    after = LogWriter.claim(store, writer.owner, "next")
    with pytest.raises(Fenced):
        writer.refresh()
    tokens = [*leaders, own, run_token(after.fence, 0)]
    assert sorted(tokens, key=lambda token: run_order(token) or ()) == tokens
    assert len(set(tokens)) == len(tokens)


@pytest.mark.parametrize("lineage", [True, False])
def test_without_a_checkpoint_there_is_nothing_to_stand_by_with(tmp_path, lineage):
    settings = settings_of(tmp_path, {})
    if lineage:
        (tmp_path / "state").mkdir()
        owner = replace(OWNER, name="clicks", namespace="default", cluster="local", uid="local")
        LogWriter.claim(LocalStore(tmp_path / "state"), owner, "leader")
    with pytest.raises(StandbyRefused, match="let the running version complete one first"):
        Standby(settings).choose()


@pytest.mark.usefixtures("leader")
def test_a_job_whose_input_ends_is_refused_before_anything_is_started(tmp_path):
    job = job_of(tmp_path, {}, bounded=True)
    with pytest.raises(StandbyRefused, match=r"spec\.bounded=true"):
        run_job(job, tmp_path, RunOptions(orders=BESIDE), lambda _: None)


def test_nothing_of_what_it_ran_beside_is_held_for_as_long_as_it_leads(leader, monkeypatch):
    lefts: list[Any] = []

    @contextmanager
    def context(*_args: Any) -> Iterator[Any]:
        made = Left()
        lefts.append(weakref.ref(made))
        yield made

    @contextmanager
    def warm(*_args: Any) -> Iterator[Any]:
        nothing: Any = None
        yield runner._Warm(nothing, nothing, JobGraph())

    monkeypatch.setattr(runner, "_context", context)
    monkeypatch.setattr(runner, "_warm", warm)
    monkeypatch.setattr(runner, "_drive", lambda *_: (RunOutcome.PROMOTED, None))
    reporter = Reporter(lambda _: None)
    with runner._standing_by(leader[2], RunOptions(orders=BESIDE), reporter) as found:
        gc.collect()
        assert found is not None
        assert found.standby is not None
        assert [left() for left in lefts] == [None]


class Left:
    """Something that a weak reference may be made to."""


def test_sparks_process_holds_no_run_that_has_ended(standing_by):
    run = standing_by.run
    callback = run._callback = BatchCallback(run._on_batch)
    standing_by.ask(PromoteRequest())
    standing_by.drive()
    with pytest.raises(Halted):
        callback(cast("Any", None), 1)


def test_rows_go_nowhere():
    sink = HeldSink()
    schema = pa.schema([("key", pa.int64())])
    writer = sink.open_writer(StageId("l", "f1r0", 1, "count", 0), schema)
    writer.write(pa.record_batch([[1]], schema))
    assert writer.finish() == []
    assert sink.publish("l", 1, []) == 0
    assert sink.restore(SinkRestore("l", "f1r0", (1,), [{"rows": 1}])) == []


def test_who_asks_for_its_end_between_two_runs_is_heard_and_others_wait(leader):
    standby, requests = Standby(leader[2]), Requests()
    other = requests.ask(CheckpointRequest())
    assert not standby.is_over(requests)
    lead = requests.ask(PromoteRequest())
    assert standby.is_over(requests)
    again = requests.ask(PromoteRequest())
    assert standby.is_over(requests)
    assert standby.promotions == [lead, again], "both are answered"
    assert lead.state == "Running"
    assert requests.take() == [other]


def test_it_takes_no_checkpoints_and_says_whom_to_ask():
    request = CheckpointRequest()
    never: Any = None
    NoCheckpoints("clicks", None).checkpoint(request, never)
    with pytest.raises(UserError, match="this driver stands by"):
        request.wait(0)


@pytest.fixture
def standing_by(leader):
    running: Any = Running()
    running.run._c.standby = Standby(leader[2])
    running.run._c.settings.name = "clicks"
    return running


def test_a_run_ends_at_an_epoch_boundary_when_the_driver_is_to_lead(standing_by):
    request = standing_by.ask(PromoteRequest())
    waits = standing_by.ask(CheckpointRequest())
    assert standing_by.drive().value == "promoted"
    assert standing_by.query.stopped
    assert not standing_by.checkpoints.job_ends, "another run follows"
    assert request.state == "Running", "it is answered once the lineage is claimed"
    assert "finish" not in standing_by.checkpoints.did
    assert not waits.done


def test_what_is_thrown_away_is_not_waited_for(standing_by):
    with standing_by.epoch_under_way():
        request = standing_by.ask(PromoteRequest())
        assert standing_by.drive().value == "promoted"
    assert standing_by.spark.cancelled.is_set()
    assert request.state == "Running"


def test_a_run_that_stands_by_is_not_rescaled(standing_by):
    request = standing_by.ask(RescaleRequest(parallelism=2))
    standing_by.run._between_epochs()
    with pytest.raises(UserError, match="ask that one"):
        request.wait(0)


def test_what_lies_in_the_store_stays_whatever_it_is_told_to_do_at_its_end(standing_by):
    def deleted(*_args):
        raise AssertionError("the job's checkpoints are its leader's")

    context = standing_by.run._c
    context.completed.shutdown = deleted
    request = StopRequest(mode="None", release=True)
    request.running()
    let_go(context, request, Stopped())
    assert request.wait(0) == Stopped()


@pytest.mark.parametrize(("beside", "kind"), [(True, VersionGone), (False, CorruptState)])
def test_a_range_that_is_opened_again_from_what_the_leader_let_go_begins_anew(beside, kind):
    """Its server has died, and with it the list of the files that lie on its volume."""

    def fail():
        raise CorruptState("part of a manifest is missing", "chk-1/part-1")

    context: Any = SimpleNamespace(standby=object() if beside else None)
    run: Any = SimpleNamespace(drive=fail)
    with pytest.raises(kind, match="part of a manifest is missing: path=chk-1/part-1") as told:
        runner._drive_run(context, run)
    assert isinstance(told.value, runner._REWIND) == beside


def test_it_is_heard_in_the_pause_after_lost_executors(standing_by, monkeypatch):
    polled = []
    monkeypatch.setattr(rewinds, "poll", lambda *_args: polled.append(1))
    context = standing_by.run._c
    lost: Any = SimpleNamespace(pause=300.0, losses=9, others=0)
    context.settings.changelog = None
    request = PromoteRequest()
    context.requests.put(request)
    rewinds.pause_before_next(context, lost, ExecutorLost("an executor is lost"))
    assert not polled
    assert request.state == "Running"


def test_it_takes_no_savepoint_to_stop_with(standing_by):
    request = standing_by.ask(SavepointRequest("before-lunch", stop=True))
    standing_by.run._between_epochs()
    with pytest.raises(UserError, match="ask that one"):
        request.wait(0)


def test_to_one_that_leads_it_says_nothing_new():
    running = Running()
    request = running.ask(PromoteRequest())
    running.stop.set()
    running.run._between_epochs()
    assert request.state == "Completed"
