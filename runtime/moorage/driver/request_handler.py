"""What a run does of what it is asked for: checkpoints, savepoints, to stop, to rescale.

Decides what follows when a request cannot be granted, and what becomes of those that are not
granted yet when the run ends. Called by the run: at epoch boundaries, under its lock, and at its
end.
"""

from collections.abc import Callable
from dataclasses import replace

from moorage.driver.checkpointer import Checkpointer
from moorage.driver.context import DriverContext
from moorage.driver.coordination import stopped
from moorage.driver.manifests import Boundary
from moorage.driver.reporter import Reporter
from moorage.driver.requests import (
    CheckpointRequest,
    JobRequest,
    PromoteRequest,
    RescaleRequest,
    SampleRequest,
    SavepointRequest,
    Stopped,
    StopRequest,
)
from moorage.driver.rescale import Rescale, check_rescale, note_manifest
from moorage.driver.standby import NoCheckpoints, Standby, not_while_standing_by
from moorage.driver.types import RunOutcome
from moorage.driver.views import SavepointView
from moorage_state.coordinator import CompletedCheckpointStore, JobEnd
from moorage_state.errors import Bug, Fenced, MoorageError, StoreUnavailable, UserError
from moorage_state.snapshots import Released


class JobStopping(UserError):
    """The job is being stopped already."""

    code = "job_stopping"


class RequestHandler:
    """Handles the requests of one run.

    Args:
        at: what a checkpoint that begins now holds.
        last_checkpoint: publishes all output with a checkpoint, and takes no more by itself.
        sample: tells a sample of the output from here on.
    """

    def __init__(
        self,
        context: DriverContext,
        checkpointer: Checkpointer | NoCheckpoints,
        at: Callable[[], Boundary],
        last_checkpoint: Callable[[], None],
        sample: Callable[[SampleRequest], None],
    ) -> None:
        self._c = context
        self._checkpointer = checkpointer
        self._at = at
        self._last_checkpoint = last_checkpoint
        self._sample = sample
        self._stop: StopRequest | None = None
        self._granted: tuple[StopRequest, Stopped] | None = None
        self._rescale: Rescale | None = None

    def take_up(self, request: JobRequest) -> None:
        """At a boundary: begin what is asked for; a stop waits for `stopped`."""
        if self._c.settings.in_one_epoch and _wants_state(request):
            request.answer(
                UserError(
                    f"the backend batch takes neither checkpoints nor savepoints: it keeps no "
                    f"state: job={self._c.settings.name}; let it end, or stop it without one"
                )
            )
            return
        if self._c.standby is not None and self._held(request, self._c.standby):
            return
        match request:
            case PromoteRequest():
                request.answer(None)  # it leads already
            case StopRequest():
                self._take_up_stop(request)
            case SavepointRequest(stop=True):
                self._take_up_stop(StopRequest(mode="Savepoint", savepoint=request))
            case SavepointRequest():
                self._checkpointer.savepoint(request, self._at)
            case CheckpointRequest():
                if request.sample is not None:
                    self._sample(request.sample)
                self._checkpointer.checkpoint(request, self._at)
            case RescaleRequest():
                self._take_up_rescale(request)
            case _:
                request.answer(Bug(f"nobody carries out such a request: kind={request.kind}"))

    def _held(self, request: JobRequest, standby: Standby) -> bool:
        """Take up what a driver that stands by does in another way, or not at all."""
        if isinstance(request, PromoteRequest):
            standby.promote(request)
            return True
        if isinstance(request, RescaleRequest) or _wants_to_keep(request):
            request.answer(not_while_standing_by(self._c.settings.name))
            return True
        return False

    def stopped(self) -> bool:
        """Whether the job was asked to stop, and now has: nothing may come after it.

        Raises MoorageError: what was to come before failed, and it cannot go on either.
        """
        request, self._stop = self._stop, None
        if request is None:
            return False
        try:
            # It publishes all output, which a savepoint does not.
            self._last_checkpoint()
            savepoint = self._last_savepoint(request.savepoint) if request.savepoint else None
        except MoorageError as error:
            _refuse(request, error)
            if isinstance(error, (Fenced, Bug)) or self._checkpointer.broken:
                raise
            what = "savepoint" if request.savepoint else "last checkpoint"
            self._c.reporter.phase("running", f"the job goes on without its {what}: {error}")
            self._checkpointer.go_on()
            self.hand_back(job_ends=False)
            return False
        self._granted = request, Stopped(self._c.reporter.progress.last_checkpoint, savepoint)
        return True

    def ended_at_once(self) -> RunOutcome:
        """The run ends without a checkpoint, in the middle of an epoch if need be: what follows."""
        request = self._c.requests.stop_at_once
        if request is None:
            return RunOutcome.PROMOTED
        self._c.reporter.phase("stopping")
        request.running()
        self._granted = request, Stopped(self._c.reporter.progress.last_checkpoint)
        return RunOutcome.STOPPED

    def hand_back(self, *, job_ends: bool) -> None:
        """What was asked for and is not done: the next run takes it up, if there is one."""
        waiting = self._checkpointer.take_suspended()
        if self._stop is not None:
            waiting.append(self._stop)
        rescale, self._rescale = self._rescale, None
        if rescale is not None:
            # The checkpoint was for it alone; the next run finds that it is done, or begins anew.
            waiting = [one for one in waiting if one is not rescale.first]
            waiting += [rescale.request, *rescale.following]
        if not job_ends:
            self._c.requests.put_back(waiting)
            return
        for request in waiting:
            request.answer(stopped(request))

    def let_go(self) -> None:
        """The last thing of a job that was asked to stop: release the lineage, and answer.

        Raises Fenced: another driver took over; nothing was released.
        """
        if self._granted is not None:
            let_go(self._c, *self._granted)

    def _take_up_stop(self, request: StopRequest) -> None:
        if self._stop is None:
            request.running()
            self._stop = request
        else:
            _refuse(request, JobStopping("the job is being stopped already: wait for that"))

    @property
    def rescales(self) -> bool:
        """Whether another number of subtasks was asked for and is not there yet."""
        return self._rescale is not None

    def may_rescale(self) -> bool:
        """Whether the run may end now for another number of subtasks that was asked for."""
        if self._rescale is None:
            return False
        try:
            saves = self._checkpointer.takes_savepoint
            return self._rescale.may_begin(self._c, saves=saves)
        except MoorageError as error:
            self.give_up_rescale(error)
            return False

    def decide_rescale(self, run: int) -> None:
        """The run has ended with a checkpoint: say in the log what holds from now on.

        Raises like `Rescale.decide`.
        """
        if self._rescale is not None:
            self._rescale.decide(self._c, run)

    def give_up_rescale(self, error: MoorageError) -> None:
        """What was to come before it failed: the job goes on as it was."""
        rescale, self._rescale = self._rescale, None
        if rescale is not None:
            rescale.request.answer(error)
            self._c.requests.put_back(rescale.following)

    def _take_up_rescale(self, request: RescaleRequest) -> None:
        try:
            check_rescale(request, self._c.settings)
            if self._rescale is not None:
                # Also for executors alone: the next run asks once more for those of the first.
                self._rescale.following.append(request)
                return
            if request.executors is not None:
                self._c.environment.scale(request.executors)
            if request.parallelism == self._c.settings.parallelism:
                note_manifest(request, self._c)
        except MoorageError as error:
            request.answer(error)
            return
        if request.parallelism in {None, self._c.settings.parallelism}:
            request.answer(None)
            return
        request.running()
        self._rescale = Rescale(request, CheckpointRequest())
        self._checkpointer.checkpoint(self._rescale.first, self._at)

    def _last_savepoint(self, request: SavepointRequest) -> SavepointView | None:
        """The savepoint that the job stops with; given up when the process must end."""
        self._checkpointer.savepoint(request, self._at)
        for report in self._checkpointer.wait(self._at, give_up=self._c.stop.is_set):
            self._c.reporter.checkpoint(report)
        for given_up in self._checkpointer.take_suspended():
            given_up.answer(stopped(given_up))
        return request.wait()


def _wants_state(request: JobRequest) -> bool:
    if isinstance(request, StopRequest):
        return request.savepoint is not None
    return isinstance(request, (SavepointRequest, CheckpointRequest))


def _wants_to_keep(request: JobRequest) -> bool:
    """Whether a stop is to leave something behind."""
    return isinstance(request, SavepointRequest) and request.stop


def let_go(context: DriverContext, request: StopRequest, result: Stopped) -> None:
    """The job has stopped as it was asked to: release the lineage if that was asked, and answer.

    Raises Fenced: another driver took over; nothing was released.
    """
    request.granted = result
    if context.standby is not None:
        # What lies in the store is another driver's: nothing is released, and nothing deleted.
        request.answer(result)
        return
    # A last checkpoint is what is to be left of the job, also where it took a failed savepoint's
    # place: whoever asks for one wants to come back from it.
    if request.release and request.mode != "Checkpoint":
        let_go_of_checkpoints(context.completed, context.reporter, JobEnd.CANCELED)
    try:
        if request.release:
            _release(context, request)
            result = request.granted = replace(result, released=True)
    except StoreUnavailable as error:
        request.answer(error)
    request.answer(result)


def let_go_of_checkpoints(
    completed: CompletedCheckpointStore, reporter: Reporter, status: JobEnd
) -> None:
    """The job has ended for good: delete the checkpoints that are not to outlive such an end.

    What fails is told and changes nothing of the end: not even that another driver took over.
    """
    try:
        count = completed.shutdown(status)
    except Exception as error:  # noqa: BLE001 - whatever it is, the job has ended as it has
        left = _left(completed, status)
        reporter.message(f"checkpoints of the ended job could not be deleted: {error}; {left}")
        return
    if count:
        reporter.message(
            f"the job is {status.value}: its checkpoints were deleted, as "
            f"checkpoint.externalizedCheckpointRetention says: checkpoints={count}"
        )


def _left(completed: CompletedCheckpointStore, status: JobEnd) -> str:
    """What becomes of checkpoints that were to be deleted at such an end, and were not."""
    if status is JobEnd.FINISHED:
        return "the next start of the job deletes what is left"
    if kept := len(completed.checkpoints):
        return f"the next start of the job goes on from what is left: checkpoints={kept}"
    # Collected as garbage is only what the log says is gone, as it does of all of them here.
    return "nobody can go on from them, and moorage snapshots gc --delete deletes what is left"


def _release(context: DriverContext, request: StopRequest) -> None:
    writer = context.writer
    entry = Released(writer.fence, f"asked to stop: request={request.request_id}")
    try:
        writer.append(entry)
    except StoreUnavailable:
        writer.append(entry)  # once more: it may be in the log, and then this finds it
    context.reporter.released()


def _refuse(request: StopRequest, error: MoorageError) -> None:
    request.answer(error)
    if request.savepoint is not None:
        request.savepoint.answer(error)
