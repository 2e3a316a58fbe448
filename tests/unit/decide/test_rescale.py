"""Other executors for a stream that runs on, and the restart where that cannot be."""

from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from moorage_testing.worlds import Stage, job_spec

from moorage_api.driver import RequestError, RequestView, RescaleBody
from moorage_operator.plan import AskDriver, StartDriver, TidyRevisions
from moorage_operator.world import PodView, Unreadable


@dataclass
class Scaled(Stage):
    """A stage whose driver hears of other executors, and answers as a test wants."""

    wishes: dict[str, int] = field(default_factory=dict)
    subtasks: dict[str, int | None] = field(default_factory=dict)
    refuses: str = ""
    slow: bool = False

    def _carry_out(self, effect):
        if isinstance(effect, AskDriver) and isinstance(effect.body, RescaleBody):
            if not self.deaf:
                self._hear(effect.body)
        else:
            super()._carry_out(effect)

    def _hear(self, body):
        if body.request_id in self.wishes:
            return
        self.wishes[body.request_id] = body.executors
        self.subtasks[body.request_id] = body.parallelism
        view = RequestView(request_id=body.request_id, kind="Rescale", state="Completed")
        if self.refuses:
            error = RequestError(code=self.refuses, message="it needs a restart")
            view = view.model_copy(update={"state": "Failed", "error": error})
        else:
            ready = self.report.executors_ready if self.slow else body.executors  # type: ignore[union-attr]  # the driver has reported
            self.say(executors_desired=body.executors, executors_ready=ready)
            if body.parallelism is not None:
                self.say(parallelism=body.parallelism)
        self.say(requests=(*self.report.requests, view))  # type: ignore[union-attr]  # the driver has reported

    def _seen(self):
        return super()._seen(), dict(self.wishes)


def running(instances=1, **spec):
    stage = Scaled(spec=job_spec(executor={"instances": instances}, **spec))
    stage.run()
    return stage


def scale(stage, instances):
    stage.edit(executor={"instances": instances})


def test_executors_alone_are_changed_while_the_stream_runs():
    stage = running()
    scale(stage, 3)
    stage.settle()
    assert list(stage.wishes.values()) == [3]
    assert stage.started() == [1]
    assert stage.status.operation is None
    assert stage.revisions[stage.status.attempt.revision].spec.executor.instances == 3
    assert stage.status.reconciliation.current_revision == stage.status.attempt.revision
    assert stage.status.executors.desired == 3
    assert stage.condition("Reconciled") == "True/UpToDate"
    [told] = stage.told("RescaledInPlace")
    assert told.message == "2 subtasks on 3 executors, without a restart"
    assert not stage.asked


def test_of_the_versions_before_only_those_are_kept_that_may_be_needed():
    stage = running()
    for instances in (2, 3, 4):
        scale(stage, instances)
        stage.settle()
    status = stage.status.reconciliation
    kept = [effect for effect in stage.effects if isinstance(effect, TidyRevisions)]
    assert kept[-1].keep == {status.current_revision, status.stable_revision} - {""}
    assert len(stage.told("RescaledInPlace")) == len(kept) - 1  # and once at the start


def test_the_status_says_that_it_is_done_in_place_and_the_job_stays_ready():
    stage = running()
    stage.slow = True
    scale(stage, 3)
    stage.settle()
    assert (stage.status.phase, stage.status.operation.step) == ("Rescaling", "Rescaling")
    assert "3 executors are asked for, the stream runs on" in stage.status.message
    assert stage.condition("Ready") == "True/Running"
    assert stage.condition("Progressing") == "True/Rescale"
    assert stage.condition("Reconciled") == "False/OperationUnderWay"
    assert (stage.status.executors.desired, stage.status.executors.ready) == (3, 1)
    stage.say(executors_ready=3)
    stage.settle()
    assert stage.status.phase == "Running"
    assert len(stage.told("RescaledInPlace")) == 1


LIVE = {"maxParallelism": 16, "mode": "InPlaceParallelism"}


def test_with_its_mode_the_parallelism_is_changed_while_the_stream_runs():
    stage = running(scaling={"parallelism": 2, **LIVE})
    stage.edit(scaling={"parallelism": 4, **LIVE}, executor={"instances": 2})
    stage.settle()
    assert (list(stage.subtasks.values()), list(stage.wishes.values())) == ([4], [2])
    assert stage.started() == [1]
    assert not stage.asked
    assert stage.status.operation is None
    assert stage.status.scaling.observed_parallelism == 4
    assert stage.revisions[stage.status.attempt.revision].spec.scaling.parallelism == 4
    assert stage.condition("Reconciled") == "True/UpToDate"
    [told] = stage.told("RescaledInPlace")
    assert told.message == "4 subtasks on 2 executors, without a restart"


def test_executors_alone_leave_the_parallelism_to_a_restart_in_the_older_mode():
    stage = running(scaling={"parallelism": 2, "maxParallelism": 16, "mode": "InPlace"})
    scale(stage, 3)
    stage.settle()
    assert list(stage.subtasks.values()) == [None]


@pytest.mark.scenario(53)
def test_a_parallelism_that_the_driver_refuses_goes_by_a_checkpoint_and_a_restart():
    stage = running(scaling={"parallelism": 2, **LIVE})
    stage.refuses = "restart_needed"
    stage.edit(scaling={"parallelism": 4, **LIVE})
    stage.settle()
    assert (stage.status.operation.type, stage.status.operation.step) == ("Rescale", "Snapshotting")
    [told] = stage.told("RescaleFallback")
    assert "(code restart_needed)" in told.message
    stage.stop_as_asked()
    stage.run()
    assert stage.started() == [1, 2]
    assert stage.revisions[stage.status.attempt.revision].spec.scaling.parallelism == 4


@pytest.mark.scenario(52)
def test_of_two_that_follow_each_other_the_driver_is_asked_for_both_and_the_last_one_counts():
    stage = running(scaling={"parallelism": 2, **LIVE})
    stage.deaf = True
    stage.edit(scaling={"parallelism": 4, **LIVE})
    stage.settle()
    stage.deaf = False
    stage.edit(scaling={"parallelism": 3, **LIVE})
    stage.settle()
    assert list(stage.subtasks.values())[-1] == 3
    assert stage.status.operation is None
    assert stage.status.scaling.observed_parallelism == 3
    assert stage.started() == [1]


def test_the_next_start_has_the_new_executors():
    stage = running()
    scale(stage, 3)
    stage.settle()
    stage.end("Failed", "user_function")
    stage.settle()
    stage.wait(400)
    orders = [effect for effect in stage.effects if isinstance(effect, StartDriver)]
    assert orders[-1].order.attempt == 2
    assert stage.revisions[orders[-1].revision].spec.executor.instances == 3


@pytest.mark.parametrize(
    "edit",
    [
        {
            "scaling": {"parallelism": 4, "maxParallelism": 16, "mode": "InPlace"},
            "executor": {"instances": 3},
        },
        {"scaling": {"parallelism": 2, "maxParallelism": 16, "mode": "Restart"}},
    ],
)
def test_other_subtasks_or_the_mode_restart_take_a_checkpoint_and_a_restart(edit):
    stage = running()
    stage.edit(**{"executor": {"instances": 3}, **edit})
    stage.settle()
    assert not stage.wishes
    assert [body.mode for body in stage.asked.values()] == ["Checkpoint"]
    stage.stop_as_asked()
    stage.run()
    assert stage.started() == [1, 2]


def test_a_live_edit_beside_it_changes_nothing_of_that():
    stage = running()
    stage.edit(executor={"instances": 3}, ttlAfterFinished="1h")
    stage.settle()
    assert list(stage.wishes.values()) == [3]
    assert stage.started() == [1]


def test_a_rescale_and_another_image_are_an_upgrade():
    stage = running()
    stage.edit(executor={"instances": 3}, image="registry.example/clicks:2")
    stage.settle()
    assert not stage.wishes
    assert stage.status.operation.type == "Upgrade"


@pytest.mark.scenario(53)
def test_what_the_driver_refuses_is_done_by_a_checkpoint_and_a_restart():
    stage = running()
    stage.refuses = "restart_needed"
    scale(stage, 3)
    stage.settle()
    assert (stage.status.operation.type, stage.status.operation.step) == ("Rescale", "Snapshotting")
    [told] = stage.told("RescaleFallback")
    assert "it needs a restart (code restart_needed)" in told.message
    assert stage.status.scaling.observed_parallelism == 2
    assert [body.mode for body in stage.asked.values()] == ["Checkpoint"]
    stage.stop_as_asked()
    stage.run()
    assert stage.started() == [1, 2]
    assert stage.orders[-1].restore.mode == "Latest"
    assert len(stage.wishes) == 1


@pytest.mark.scenario(53)
def test_what_is_done_half_by_its_deadline_is_done_by_a_checkpoint_and_a_restart():
    stage = running(instances=3)
    stage.say(executors_desired=3, executors_ready=3)
    stage.settle()
    stage.slow = True
    scale(stage, 1)
    stage.settle()
    assert (stage.status.executors.desired, stage.status.executors.ready) == (1, 3)
    for seconds in (600, 659):
        stage.wait(seconds)
        assert not stage.asked
        assert stage.status.executors.ready == 3
        stage.say(last_progress_time=stage.now)
    stage.wait(2)
    [told] = stage.told("RescaleFallback")
    assert "3 executors are ready and 1 are wanted" in told.message
    assert stage.status.operation.step == "Snapshotting"
    stage.stop_as_asked()
    stage.run()
    assert stage.started() == [1, 2]


@pytest.mark.scenario(53)
def test_a_driver_that_dies_half_way_is_brought_back_with_what_was_wanted():
    stage = running()
    stage.slow = True
    scale(stage, 3)
    stage.settle()
    stage.end("Failed", "user_function")
    stage.settle()
    assert stage.status.operation.type == "Recover"
    stage.wait(400)
    assert stage.revisions[stage.status.attempt.revision].spec.executor.instances == 3
    assert stage.started() == [1, 2]


def test_executors_that_wait_for_room_are_no_reason_for_a_restart():
    stage = running()
    stage.slow = True
    scale(stage, 3)
    stage.settle()
    stage.executors["e"] = PodView("e", "e-uid", "executor", attempt=1, phase="Pending")
    stage.go_on(1300)
    assert stage.status.operation is None
    assert stage.started() == [1]
    assert stage.condition("Degraded") == "True/ExecutorsMissing"
    [told] = stage.told("RescaledInPlace")
    assert "1 of 3 executors are ready, the others wait for room" in told.message
    assert stage.condition("Reconciled") == "True/UpToDate"


def test_a_driver_that_never_answers_is_restarted_in_the_end():
    stage = running()
    stage.deaf = True
    scale(stage, 3)
    stage.settle()
    stage.wait(1300)
    assert stage.told("RescaleFallback")
    assert stage.status.operation.step == "Snapshotting"


def test_a_driver_that_hangs_meanwhile_is_restarted_as_one_that_hangs():
    stage = running()
    stage.deaf = True
    scale(stage, 3)
    moved = stage.now
    for _ in range(15):
        stage.say(answered_at=stage.now, last_move_time=moved)
        stage.wait(60)
    assert stage.told("RescaleFallback") == []
    stage.say(answered_at=stage.now, last_move_time=moved)
    stage.wait(1)
    (told,) = stage.told("RescaleFallback")
    assert "did not take it up in time" in told.message
    assert stage.now - moved < timedelta(minutes=16)


def test_a_silent_driver_is_not_asked_and_one_that_knows_is_not_asked_again():
    stage = running()
    answering = stage.report
    stage.report = Unreadable("EndpointUnreachable", "no answer")
    scale(stage, 3)
    stage.settle()
    assert not stage.wishes
    stage.report, stage.slow = answering, True
    stage.settle()
    for _ in range(5):
        stage.wait(10)
    asked = [e for e in stage.effects if isinstance(e, AskDriver)]
    assert len(asked) == len(stage.wishes) == 1


def test_of_two_rescales_the_last_one_wins():
    stage = running()
    stage.slow = True
    scale(stage, 3)
    stage.settle()
    stage.slow = False
    scale(stage, 5)
    stage.settle()
    assert list(stage.wishes.values()) == [3, 5]
    assert stage.status.operation is None
    assert stage.revisions[stage.status.attempt.revision].spec.executor.instances == 5
    assert stage.started() == [1]


def test_a_rescale_that_is_taken_back_asks_for_as_many_as_before():
    stage = running()
    before, stage.slow = stage.status.attempt.revision, True
    scale(stage, 3)
    stage.settle()
    stage.slow = False
    scale(stage, 1)
    stage.settle()
    assert list(stage.wishes.values()) == [3, 1]
    assert stage.status.operation is None
    assert stage.status.attempt.revision == before


@pytest.mark.parametrize(
    ("mode", "refuses"), [("InPlaceParallelism", "user_error"), ("InPlace", ""), ("Restart", "")]
)
def test_what_cannot_be_taken_back_in_place_is_taken_back_by_a_restart(mode, refuses):
    stage = running(scaling={"parallelism": 2, **LIVE})
    before, stage.slow = stage.status.attempt.revision, True
    stage.edit(scaling={"parallelism": 4, **LIVE}, executor={"instances": 2})
    stage.settle()
    assert stage.status.scaling.observed_parallelism == 4
    assert stage.status.operation.step == "Rescaling"
    stage.refuses = refuses
    stage.edit(scaling={"parallelism": 2, **LIVE, "mode": mode}, executor={"instances": 1})
    stage.settle()
    assert (stage.status.operation.type, stage.status.operation.step) == ("Rescale", "Snapshotting")
    assert stage.told("RescaleFallback")
    assert [body.mode for body in stage.asked.values()] == ["Checkpoint"]
    stage.stop_as_asked()
    stage.run()
    assert stage.started() == [1, 2]
    assert stage.status.operation is None
    assert stage.revisions[stage.status.attempt.revision].spec.scaling.parallelism == 2
    assert stage.status.attempt.revision == before


@pytest.mark.parametrize("unsaid", ["parallelism", "executors_desired"])
def test_a_restart_is_taken_back_where_the_driver_does_not_say_how_wide_it_runs(unsaid):
    stage = running(scaling={"parallelism": 2, "maxParallelism": 16, "mode": "Restart"})
    stage.deaf = True
    stage.edit(scaling={"parallelism": 4, "maxParallelism": 16, "mode": "Restart"})
    stage.settle()
    assert (stage.status.operation.type, stage.status.operation.step) == ("Rescale", "Snapshotting")
    stage.say(**{unsaid: 0})
    stage.edit(scaling={"parallelism": 2, "maxParallelism": 16, "mode": "Restart"})
    stage.settle()
    assert stage.told("OperationCancelled")
    assert stage.status.operation is None


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({"image": "registry.example/clicks:2"}, "Upgrade"),
        ({"desiredState": "Suspended"}, "Suspend"),
        ({"restore": {"nonce": 1}}, "Redeploy"),
    ],
)
def test_what_is_asked_for_meanwhile_comes_first(more, kind):
    stage = running()
    stage.slow = True
    scale(stage, 3)
    stage.settle()
    stage.edit(**more)
    stage.settle()
    assert stage.status.operation.type == kind
    assert stage.status.operation.step == "Snapshotting"
    stage.stop_as_asked()
    stage.settle()
    if kind != "Suspend":
        stage.run()
        assert stage.revisions[stage.status.attempt.revision].spec.executor.instances == 3


def test_a_restart_that_is_asked_for_meanwhile_comes_first():
    stage = running()
    stage.slow = True
    scale(stage, 3)
    stage.settle()
    stage.annotate(restart="now")
    stage.settle()
    assert stage.status.operation.type == "Upgrade"


def test_an_edit_that_is_wrong_does_not_end_a_rescale():
    stage = running()
    stage.slow = True
    scale(stage, 3)
    stage.settle()
    stage.edit_badly()
    stage.settle()
    stage.say(executors_ready=3)
    stage.settle()
    assert stage.status.operation is None
    assert stage.revisions[stage.status.attempt.revision].spec.executor.instances == 3


def test_a_job_that_is_deleted_meanwhile_is_asked_for_its_last_snapshot():
    stage = running()
    stage.slow = True
    scale(stage, 3)
    stage.settle()
    waiting = RequestView(request_id=next(iter(stage.wishes)), kind="Rescale", state="Pending")
    stage.say(requests=(waiting,))
    stage.delete()
    stage.settle()
    assert [body.mode for body in stage.asked.values()] == ["Savepoint"]


@pytest.mark.parametrize("crash", ["status", "first"])
def test_an_operator_that_dies_at_any_step_asks_once(crash):
    stage = running()
    scale(stage, 3)
    for _ in range(12):
        stage.pass_(crash=crash)
        if stage.status.operation is None and stage.wishes:
            break
        stage.pass_()
    stage.settle()
    assert list(stage.wishes.values()) == [3]
    assert stage.started() == [1]
    assert stage.status.operation is None


def test_a_version_that_was_stable_stays_so_with_other_executors():
    stage = running()
    stage.go_on(200)
    assert stage.status.phase == "Stable"
    scale(stage, 3)
    stage.settle()
    assert stage.status.phase == "Stable"
    assert stage.status.reconciliation.stable_revision == stage.status.attempt.revision
    assert stage.now - stage.status.attempt.stable_since < timedelta(hours=1)


def test_a_request_without_a_name_is_given_one():
    """A status that a person made; a decision about it must not fail for ever."""
    stage = Stage(spec=job_spec(executor={"instances": 2}))
    stage.run()
    stage.edit(executor={"instances": 3})
    stage.pass_()
    operation = stage.status.operation
    assert operation is not None
    nameless = operation.model_copy(update={"snapshot_request_id": ""})
    stage.status = stage.status.model_copy(update={"operation": nameless})
    stage.settle()
    asked = [effect.body for effect in stage.effects if isinstance(effect, AskDriver)]
    assert asked[-1].request_id == f"{nameless.id}-rescale"
