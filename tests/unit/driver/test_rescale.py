"""Another number of subtasks for a job that runs on: what is decided when, and what is refused."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from moorage.driver.environment import RangesMove
from moorage.driver.local import cores_and_servers
from moorage.driver.requests import CheckpointRequest, RescaleRequest, StopRequest
from moorage.driver.rescale import EXECUTORS_SECONDS, Rescale, follow_manifest, in_force, resized
from moorage.driver.restore_point import Choice
from moorage.driver.types import RunOutcome
from moorage.driver.views import ExecutorsView
from moorage_state import failpoints
from moorage_state.errors import Fenced, MoorageError, Retryable, StoreUnavailable
from moorage_state.snapshots import (
    CheckpointStore,
    LogWriter,
    Owner,
    Rescaled,
    parallelism_of,
    rescaled,
)

from .test_request_handler import Checkpoints, Running
from .test_restore_point import manifest as new_manifest
from .test_savepoints import NOW

OWNER = Owner("c", "n", "j", "u")


class Taking(Checkpoints):
    """A checkpointer that completes what it is asked for, and what a run ends with."""

    def __init__(self, world: "Live") -> None:
        super().__init__()
        self.world = world
        self.first_error: MoorageError | None = None

    def checkpoint(self, request: CheckpointRequest, _at: Any) -> None:
        self.did.append("checkpoint")
        self.world.complete()
        request.answer(self.first_error)

    def finish(self, *arguments: Any, **options: Any) -> list[Any]:
        super().finish(*arguments, **options)
        self.world.complete()
        return []


@dataclass(frozen=True)
class Width:
    """Of the settings what a rescale reads."""

    parallelism: int
    max_parallelism: int = 16
    declared_parallelism: int = 4


@dataclass(frozen=True)
class Between:
    """Of a driver's context what a rescale reads."""

    settings: Width
    writer: LogWriter
    reporter: Any
    fleet: Any
    planner: Any


class Live(Running):
    """A job that may be rescaled while it runs; each checkpoint has the next id."""

    def __init__(self, looks: int = 50) -> None:
        super().__init__(looks)
        vars(self.run._c.settings).update(rescales_live=True)
        self.taken = 0
        taking: Any = Taking(self)
        self.checkpoints = self.run._checkpointer = self.run._handler._checkpointer = taking

    def complete(self) -> None:
        self.taken += 1
        made = new_manifest(self.writer, self.taken)
        CheckpointStore(self.store).complete(self.writer, made, NOW)

    def between_runs(self) -> Any:
        """What the driver has in its hands there, of a job whose manifest said 4."""
        reporter = SimpleNamespace(message=lambda _text: None, job=lambda *_numbers: None)
        fleet = SimpleNamespace(resize=lambda _wanted: None)
        planner = SimpleNamespace(resized=lambda _wanted: None)
        return Between(Width(4), self.writer, reporter, fleet, planner)

    def width_after_a_restart(self) -> int:
        return parallelism_of(LogWriter.claim(self.store, OWNER, "the next").entries, 4)


@pytest.fixture
def live():
    return Live()


def test_a_run_ends_for_another_number_of_subtasks_with_a_checkpoint_and_one_entry(live):
    request = live.ask(RescaleRequest(parallelism=6))
    with pytest.raises(RangesMove, match="dealt out anew"):
        live.drive()
    # One beside the epochs, so that little is left for the one that nobody writes beside.
    assert live.checkpoints.did == ["checkpoint", "finish"]
    assert live.entries()[-1] == Rescaled(1, 1, 2, 6, 4)
    assert request.state == "Pending"
    assert live.requests.take() == [request], "the next run answers it"
    assert live.width_after_a_restart() == 6


def test_the_run_that_follows_answers_that_it_is_done(live):
    live.run._c.settings.parallelism = 6
    request = live.ask(RescaleRequest(parallelism=6))
    live.ask(StopRequest())
    live.drive()
    assert request.state == "Completed"
    assert rescaled(live.entries()) is None


@pytest.mark.parametrize(
    ("wanted", "setting", "code", "match"),
    [
        (17, {}, "rescale_refused", "asked=17 .* maxParallelism=16"),
        (0, {}, "rescale_refused", "ask for 1 to 16"),
        (6, {"rescales_live": False}, "restart_needed", "InPlaceParallelism"),
        (6, {"in_one_epoch": True}, "restart_needed", "backend batch"),
    ],
)
def test_what_cannot_be_had_is_refused_and_nothing_happens(live, wanted, setting, code, match):
    vars(live.run._c.settings).update(setting)
    request = live.ask(RescaleRequest(parallelism=wanted, executors=3))
    live.ask(StopRequest(mode="None") if setting.get("in_one_epoch") else StopRequest())
    if setting.get("in_one_epoch"):
        live.run._between_epochs()
    assert live.drive() is RunOutcome.STOPPED
    assert request.error.code == code
    with pytest.raises(MoorageError, match=match):
        request.wait(0)
    assert live.environment.scaled == []
    assert rescaled(live.entries()) is None


def test_a_second_one_waits_until_the_first_is_done(live):
    first = live.ask(RescaleRequest(parallelism=6))
    second = live.ask(RescaleRequest(parallelism=8))
    with pytest.raises(RangesMove):
        live.drive()
    assert live.requests.take() == [first, second], "the next run answers the first, and begins"


def test_one_that_comes_during_the_last_checkpoint_is_not_undone_by_the_one_before(live):
    later: list[RescaleRequest] = []
    finish = live.checkpoints.finish

    def finished(*arguments: Any, **options: Any) -> list[Any]:
        later.append(live.ask(RescaleRequest(parallelism=8)))
        return finish(*arguments, **options)

    live.checkpoints.finish = finished
    first = live.ask(RescaleRequest(parallelism=6))
    with pytest.raises(RangesMove):
        live.drive()
    assert live.requests.take() == [first, *later]


def test_executors_that_are_asked_for_meanwhile_are_not_undone_by_those_before(live):
    live.ask(RescaleRequest(parallelism=6, executors=6))
    fewer = live.ask(RescaleRequest(executors=3))
    with pytest.raises(RangesMove):
        live.drive()
    # The next run: it takes up both.
    live.run._c.settings.parallelism = 6
    for request in live.requests.take():
        live.run._handler.take_up(request)
    assert fewer.state == "Completed"
    assert live.environment.scaled[-1] == 3


def test_a_second_one_has_its_turn_where_the_first_is_given_up(live):
    live.checkpoints.first_error = Retryable("the store is away")
    first = live.ask(RescaleRequest(parallelism=6))
    second = live.ask(RescaleRequest(parallelism=8))
    give_up = live.run._handler.give_up_rescale

    def given_up(error: MoorageError) -> None:
        live.checkpoints.first_error = None  # the store is there again
        give_up(error)

    vars(live.run._handler).update(give_up_rescale=given_up)
    with pytest.raises(RangesMove):
        live.drive()
    assert isinstance(first.error, Retryable)
    assert live.requests.take() == [second]
    assert live.width_after_a_restart() == 8


def test_it_waits_for_a_savepoint_and_the_stream_runs_on(live):
    live.checkpoints.takes_savepoint = True
    live.run._c.settings.bounded = True
    request = live.ask(RescaleRequest(parallelism=6))
    assert live.drive() is RunOutcome.FINISHED
    assert rescaled(live.entries()) is None
    assert request.error.code == "job_stopped"


def test_subtasks_that_would_move_to_new_executors_wait_for_it_and_move_once(live):
    live.moves = True
    taking: list[CheckpointRequest] = []
    looks = iter(range(9))

    def poll(*_args: Any) -> list[Any]:
        if taking and next(looks) == 3:
            live.complete()
            taking[0].answer(None)
        return []

    live.checkpoints.poll = poll
    live.checkpoints.checkpoint = lambda request, _at: taking.append(request)
    live.ask(RescaleRequest(parallelism=6))
    with pytest.raises(RangesMove, match="dealt out anew"):
        live.drive()


def test_a_stop_goes_before_it(live):
    request = live.ask(RescaleRequest(parallelism=6))
    stop = live.ask(StopRequest())
    assert live.drive() is RunOutcome.STOPPED
    assert stop.state == "Completed"
    assert request.error.code == "job_stopped"
    assert live.width_after_a_restart() == 4


@pytest.mark.parametrize("which", ["first", "last"])
def test_where_its_checkpoint_fails_the_job_goes_on_as_it_was(live, which):
    error = Retryable("the store is away")
    if which == "first":
        live.checkpoints.first_error = error
    else:
        live.checkpoints.finish_error = error
    live.run._c.settings.bounded = True
    request = live.ask(RescaleRequest(parallelism=6))
    assert live.drive() is RunOutcome.FINISHED
    with pytest.raises(Retryable, match="away"):
        request.wait(0)
    assert live.width_after_a_restart() == 4


class Died(BaseException):
    """The process ends here."""


def places() -> list[str]:
    """What a rescale passes, in order."""
    passed: list[str] = []
    live = Live()
    live.ask(RescaleRequest(parallelism=6))
    with failpoints.watched(passed.append), pytest.raises(RangesMove):
        live.drive()
    return passed


@pytest.mark.parametrize("nth", range(len(places())))
def test_a_crash_at_any_place_leaves_the_old_number_before_the_entry_and_the_new_after(nth):
    live, passed = Live(), []

    def die(place: str) -> None:
        passed.append(place)
        if len(passed) > nth:
            raise Died

    live.ask(RescaleRequest(parallelism=6))
    with failpoints.watched(die), pytest.raises(Died):
        live.drive()
    decided = rescaled(live.entries()) is not None
    assert live.width_after_a_restart() == (6 if decided else 4)
    # The last three are those of the entry itself: not there, there, and known to be there.
    assert decided == (nth >= len(places()) - 2)


def test_of_two_drivers_only_the_one_that_holds_the_fence_decides(live):
    live.ask(RescaleRequest(parallelism=6))
    taken_over = live.complete

    def complete() -> None:
        taken_over()
        if live.taken == 2:
            LogWriter.claim(live.store, OWNER, "another")

    live.complete = complete
    with pytest.raises(Fenced):
        live.drive()
    assert rescaled(live.entries()) is None
    assert live.width_after_a_restart() == 4


@pytest.mark.parametrize("arrived", [True, False])
def test_an_entry_in_doubt_is_settled_before_the_next_run(live, monkeypatch, arrived):
    put = live.store.put_if_absent
    broken: list[str] = []

    def put_if_absent(key: str, data: bytes) -> None:
        if b"?rescaled" in data and not broken:
            broken.append(key)
            if arrived:
                put(key, data)
            raise StoreUnavailable("no answer")
        put(key, data)

    monkeypatch.setattr(live.store, "put_if_absent", put_if_absent)
    request = live.ask(RescaleRequest(parallelism=6))
    with pytest.raises(StoreUnavailable):
        live.drive()
    live.writer.settle()  # as the driver does between two runs
    assert parallelism_of(live.writer.entries, 4) == 6
    assert [e for e in live.entries() if isinstance(e, Rescaled)] == [Rescaled(1, 1, 2, 6, 4)]
    assert live.requests.take() == [request]


def test_executors_that_come_with_it_are_waited_for_while_the_stream_runs_on():
    now, view = [0.0], [ExecutorsView(desired=4, ready=2)]
    context: Any = SimpleNamespace(environment=SimpleNamespace(executors=lambda: view[0]))
    first = CheckpointRequest()
    one = Rescale(RescaleRequest(parallelism=4, executors=4), first, clock=lambda: now[0])
    assert not one.may_begin(context, saves=False), "its first checkpoint is under way"
    first.answer(None)
    assert not one.may_begin(context, saves=False)
    view[0] = ExecutorsView(desired=4, ready=4)
    assert one.may_begin(context, saves=False)
    view[0], now[0] = ExecutorsView(desired=4, ready=3), EXECUTORS_SECONDS
    assert one.may_begin(context, saves=False), "it goes on with those that there are"


def test_a_manifest_that_asked_for_it_and_is_set_back_before_the_next_start_counts(live):
    live.ask(RescaleRequest(parallelism=6, executors=3, declared=6))
    with pytest.raises(RangesMove):
        live.drive()
    assert live.entries()[-1] == Rescaled(1, 1, 2, 6, 6)
    assert [parallelism_of(live.writer.entries, n) for n in (4, 6)] == [4, 6]
    context = resized(live.between_runs())
    assert context.settings.parallelism == 6, "the run that follows has it all the same"
    assert resized(context) is context


def test_a_manifest_that_comes_to_say_what_runs_already_is_noted(live):
    live.writer.append(Rescaled(1, 1, 2, 6, 4))
    live.run._c.settings.parallelism = 6
    asked = [live.ask(RescaleRequest(parallelism=6, declared=6)) for _ in range(2)]
    live.run._between_epochs()
    assert [one.state for one in asked] == ["Completed", "Completed"]
    noted = [entry for entry in live.entries() if isinstance(entry, Rescaled)]
    assert noted[1:] == [Rescaled(1, 1, 2, 6, 6)], "runs before it stay shut out"


def test_another_one_that_no_manifest_asked_for_keeps_what_the_manifest_says(live):
    live.writer.append(Rescaled(1, 0, 0, 6, 6))
    live.run._c.settings.parallelism = 6
    live.ask(RescaleRequest(parallelism=8))
    with pytest.raises(RangesMove):
        live.drive()
    assert [parallelism_of(live.writer.entries, n) for n in (4, 6)] == [4, 8]


def test_what_the_log_says_does_not_count_where_there_are_fewer_key_groups_by_now(live):
    live.writer.append(Rescaled(1, 1, 2, 6, 4))
    job: Any = Width(4, max_parallelism=5)
    settings = in_force(job, live.writer.entries)
    assert settings.parallelism == 4
    follow_manifest(settings, live.writer, Choice(None, explicit=True))
    assert live.entries()[-1] == Rescaled(1, 0, 0, 4, 4), "a rewind must not bring it back"


def test_a_manifest_that_changed_counts_again_and_the_log_says_so(live):
    live.writer.append(Rescaled(1, 1, 2, 6, 4))
    settings: Any = SimpleNamespace(declared_parallelism=4, parallelism=6)
    follow_manifest(settings, live.writer, Choice(None, explicit=False))
    assert live.entries()[-1] == Rescaled(1, 1, 2, 6, 4)
    settings.declared_parallelism = settings.parallelism = 8
    point: Any = SimpleNamespace(checkpoint_id=9)
    follow_manifest(settings, live.writer, Choice(point, explicit=False))
    assert live.entries()[-1] == Rescaled(1, 0, 9, 8, 8)
    assert [parallelism_of(live.writer.entries, n) for n in (4, 8)] == [4, 8]


@pytest.mark.parametrize(
    ("live", "asked", "expected"),
    [
        (True, None, (12, 2)),
        (True, 4, (4, 4)),
        (True, 64, (64, 16)),
        (False, None, (2, 2)),
        (False, 4, (4, 2)),
    ],
)
def test_on_one_machine_there_are_cores_for_more_subtasks_and_servers_for_those_asked_for(
    live, asked, expected
):
    settings: Any = SimpleNamespace(rescales_live=live, parallelism=2, max_parallelism=16)
    assert cores_and_servers(settings, asked, machine=12) == expected
