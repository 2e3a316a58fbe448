"""A driver without Spark, from its container's start to its end.

Its state counts epochs, so a restore point says exactly how much of the stream it holds. What it
does is what `docs/driver-endpoint.md` says of the real one, at the speed of a fake clock.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from pydantic import BaseModel

from moorage_api.driver import (
    CHECKPOINTS_PATH,
    PROMOTE_PATH,
    RESCALE_PATH,
    SAVEPOINTS_PATH,
    STOP_PATH,
    CheckpointBody,
    DriverEnd,
    DriverState,
    LoadReport,
    OperatorLoad,
    OutputSample,
    PromoteBody,
    RequestError,
    RequestView,
    RescaleBody,
    SampleOrder,
    SampleSegment,
    SavepointBody,
    SavepointInfo,
    SinkView,
    SkewReport,
    StopBody,
)
from moorage_operator.ports import EndpointRefused
from moorage_state.errors import Fenced
from moorage_state.snapshots import Released
from moorage_testing.world.lineages import LineageKeeper

__all__ = ["FakeDriver"]


@dataclass(slots=True)
class _Asked:
    """One request."""

    body: BaseModel
    kind: str
    view: RequestView
    due: datetime | None = None


@dataclass(slots=True, kw_only=True)
class FakeDriver(LineageKeeper):
    """One driver, from its container's start to its end."""

    pod_uid: str
    token: str
    started: datetime
    last_epoch_at: datetime | None = None
    running_since: datetime | None = None
    end: DriverEnd | None = None
    exit_code: int = 0
    asked: dict[str, _Asked] = field(default_factory=dict)
    stopping: StopBody | None = None
    term_at: datetime | None = None
    parallelism: int = 0
    parallel_since: datetime | None = None
    executors: int = 0
    executors_ready: int = 0
    cut_off: bool = False
    executors_lost: int = 0
    rewinds: int = 0
    standby: bool = False
    sinks: tuple[SinkView, ...] | None = None
    rows: float = 0.0
    sampling: SampleOrder | None = None
    knows_samples: bool = True
    sampled_since: int = 0

    def __post_init__(self) -> None:
        self.standby = self.order.standby
        self.sampling = self.order.sample

    # -- facts ---------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.end is None and self.exit_code == 0

    @property
    def rate(self) -> float:
        """Rows that it takes in a second."""
        return self.habits.standby_rate if self.standby else 100.0

    def lose_executor(self) -> None:
        """An executor is gone, and the stream begins anew from the newest checkpoint."""
        self.executors_lost += 1
        self.rewinds += 1

    def state(self) -> DriverState:
        """What it says of itself."""
        return DriverState(
            attempt=self.order.attempt,
            job_uid=self.order.job_uid,
            phase=self.phase,
            standby=self.standby,
            message=self.habits.standby_says if self.standby else "",
            busy_ratio=1.0 if self.standby and self.habits.standby_behind else 0.5,
            rows_total=round(self.rows),
            rows_per_second=self.rate,
            state_bytes=self.habits.standby_bytes if self.standby else 1 << 30,
            lineage=self.writer.lineage if self.writer else "",
            fence=self.writer.fence if self.writer else 0,
            epoch=self.epoch,
            parallelism=self.parallelism if self.running_since else 0,
            max_parallelism=self.manifest["spec"]["scaling"].get("maxParallelism", 128),
            load=self._borne(),
            executors_desired=self.executors,
            executors_ready=self.executors_ready,
            executors_lost=self.executors_lost,
            rewinds=self.rewinds,
            last_progress_time=self.last_epoch_at,
            last_move_time=self.last_epoch_at,
            running_since=None if self.standby else self.running_since,
            restored_from=self.restored,
            last_checkpoint=self.last_checkpoint,
            last_savepoint=self.last_savepoint,
            completed_checkpoints=self.completed,
            last_checkpoint_time=self.last_checkpoint.completed_at
            if self.completed and self.last_checkpoint
            else None,
            consecutive_failed_checkpoints=self.failed_in_a_row,
            storage_error=self.storage_error,
            sinks=self.sinks,
            sample=self._sample(),
            requests=tuple(asked.view for asked in self.asked.values()),
        )

    def _borne(self) -> LoadReport | None:
        """Of a load that has been the same since the number of subtasks changed."""
        arrival = self.habits.arrivals.get(self.manifest["metadata"]["name"])
        if arrival is None or self.parallel_since is None or self.last_epoch_at is None:
            return None
        seconds = (self.last_epoch_at - self.parallel_since).total_seconds()
        window = min(seconds, self.habits.load_window)
        capacity = self.parallelism * self.habits.each
        done, waits = min(arrival, capacity), max(arrival - capacity, 0.0)
        if self.standby and self.habits.standby_behind:
            waits = arrival
        return LoadReport(
            seconds=window,
            epochs=int(window),
            rows=round(done * window),
            busy_seconds=window * done / capacity,
            lag_rows=round(waits * seconds),
            lag_rows_before=0,
            lag_seconds=seconds,
            skew=self._skew(done * window),
            operators=(self._counts(),),
            operator_seconds=window,
            whole=seconds >= self.habits.load_window,
        )

    def _skew(self, rows: float) -> SkewReport | None:
        if not self.habits.hot:
            return None
        mean = rows / self.parallelism
        most = round(mean * self.habits.hot)
        return SkewReport(uid="counts", subtask=1, key_groups="8-15", rows=most, mean_rows=mean)

    def _counts(self) -> OperatorLoad:
        """Of its one operator."""
        gives, rows = self.habits.standby_output if self.standby else 2.0, round(self.rows)
        return OperatorLoad(uid="counts", subtasks=1, rows_in=rows, rows_out=round(rows * gives))

    def _sample(self) -> OutputSample | None:
        """Of its one sink, which gets some rows in each epoch; an epoch is a position as well."""
        if self.sampling is None or self.running_since is None:
            return None
        odd = self.habits.standby_differs if self.standby else 0
        segments = []
        for first in range(self.sampled_since, self.epoch, 8):
            epochs = range(first + 1, min(first + 8, self.epoch) + 1)
            rows = {f"{n:012x}{int(bool(odd) and n % odd == 0):04x}": 2 for n in epochs}
            end: dict[str, dict[str, int | float | str]] = {"clicks": {"": epochs[-1]}}
            segments.append(SampleSegment(epochs=len(epochs), end=end, rows={"out": rows}))
        return OutputSample(
            percent=self.sampling.percent,
            except_columns=self.sampling.except_columns,
            since_epoch=self.sampled_since,
            start={"clicks": {"": self.sampled_since}},
            limits={"out": "f" * 16},
            segments=tuple(segments),
        )

    # -- life ----------------------------------------------------------------------------------

    def tick(self, now: datetime) -> None:
        """Do what is due."""
        if not self.alive:
            return
        try:
            self._live(now)
        except Fenced as error:
            self._end("Failed", 6, "fenced", str(error))

    def terminate(self, now: datetime) -> None:
        """SIGTERM: a fast checkpoint, then the end."""
        if self.alive and self.term_at is None:
            self.term_at = now

    def kill(self) -> None:
        """SIGKILL: no word."""
        if self.alive:
            self.exit_code = 137

    def fail(self, code: str, exit_code: int, message: str = "it broke") -> None:
        """The job fails by itself."""
        if self.alive:
            self._end("Failed", exit_code, code, message)

    def _live(self, now: datetime) -> None:
        if self.phase == "starting":
            if self.term_at is not None:
                self._end("Stopped", 0)
            elif now >= self.started + timedelta(seconds=self.habits.boot):
                self._start(now)
            return
        if self.phase == "restoring":
            since = self.started + timedelta(seconds=self.habits.boot + self.habits.restore)
            if now < since:
                return
            # One that is told to end meanwhile sees to it when it runs: with a last checkpoint.
            self._begin(now)
            if self.term_at is None:
                return
        self._run_epochs(now)
        self._serve(now)
        self._save(now, leads=not self.standby and self.phase == "running")

    def _save(self, now: datetime, *, leads: bool) -> None:
        if self.alive and leads and self.checkpoint_at and now >= self.checkpoint_at:
            self._checkpoint(now)
        if self.alive and self.term_at is not None:
            if leads:
                self._checkpoint(now)
            self._end("Stopped", 0)

    def _start(self, now: datetime) -> None:
        if not self.standby:
            self._claim(now)
        elif self.habits.standby_fails:
            self._end("Failed", 3, "user_function", self.habits.standby_fails)
        elif self._look():
            self.phase = "restoring"

    def _promote(self, now: datetime) -> None:
        """All is warm: what is left is to claim and to restore."""
        self.standby, self.running_since, self.sampling = False, None, None
        self.phase, self.started = "starting", now - timedelta(seconds=self.habits.boot)
        self._claim(now)

    def _begin(self, now: datetime) -> None:
        self.phase, self.sampled_since = "running", self.epoch
        self.running_since = self.last_epoch_at = self.parallel_since = now
        self.parallelism = self.manifest["spec"]["scaling"]["parallelism"]
        self.executors = self.executors_ready = (
            self.manifest["spec"].get("executor", {}).get("instances") or 1
        )
        self.checkpoint_at = now + timedelta(seconds=self.interval)
        if self.habits.sinks is not None:
            known = self.habits.sinks.items()
            self.sinks = tuple(SinkView(uid=uid, takes_back=place) for uid, place in known)

    def _run_epochs(self, now: datetime) -> None:
        assert self.last_epoch_at is not None
        if self.stands_still:
            return
        step = timedelta(seconds=self.habits.epoch)
        while self.last_epoch_at + step <= now:
            self.last_epoch_at += step
            self.epoch += 1
            self.rows += self.rate * self.habits.epoch
            if self.habits.finish_at and self.epoch >= self.habits.finish_at:
                self._checkpoint(now)
                if self.alive:
                    self._end("Finished", 0)
                return

    # -- requests ------------------------------------------------------------------------------

    def ask(self, path: str, body: BaseModel) -> RequestView:
        """Take up a request, or say how the one of this id stands."""
        kinds: dict[str, Any] = {
            CHECKPOINTS_PATH: "Checkpoint",
            SAVEPOINTS_PATH: "Savepoint",
            STOP_PATH: "Stop",
            RESCALE_PATH: "Rescale",
            PROMOTE_PATH: "Promote",
        }
        assert isinstance(body, (CheckpointBody, SavepointBody, StopBody, RescaleBody, PromoteBody))
        if getattr(body, "sample", None) is not None and not self.knows_samples:
            raise EndpointRefused("bad_request", "sample: extra inputs are not permitted")
        known = self.asked.get(body.request_id)
        if known is not None:
            if known.body != body:
                raise EndpointRefused("request_conflict", "the id was used for something else")
            return known.view
        view = RequestView(request_id=body.request_id, kind=kinds[path], state="Pending")
        self.asked[body.request_id] = _Asked(body, kinds[path], view)
        return view

    def _serve(self, now: datetime) -> None:
        for asked in list(self.asked.values()):
            if not self.alive or asked.view.state in ("Completed", "Failed") or self.stands_still:
                continue
            if asked.due is None:
                if isinstance(asked.body, CheckpointBody) and asked.body.sample is not None:
                    self.sampling, self.sampled_since = asked.body.sample, self.epoch
                asked.due = now + timedelta(seconds=self.habits.snapshot)
                asked.view = asked.view.model_copy(update={"state": "Running"})
            elif now >= asked.due:
                self._answer(asked, now)

    def _answer(self, asked: _Asked, now: datetime) -> None:
        body: Any = asked.body
        if isinstance(body, StopBody) and self.habits.ignore_stop:
            return
        changes: dict[str, Any] = {"state": "Completed"}
        if isinstance(body, PromoteBody):
            failed = False
            if self.standby:
                self._promote(now)
        elif isinstance(body, RescaleBody):
            failed = not self._rescale(body, now)
        elif isinstance(body, CheckpointBody) or (
            isinstance(body, StopBody) and body.mode == "Checkpoint"
        ):
            changes["checkpoint"] = self._checkpoint(now)
            failed = changes["checkpoint"] is None
        elif isinstance(body, SavepointBody) or body.mode == "Savepoint":
            if isinstance(body, StopBody):
                self._checkpoint(now)
            changes["savepoint"] = self._savepoint(str(body.name), _attempt_of(body), now)
            failed = changes["savepoint"] is None
        else:
            failed = False
        if failed:
            changes = {
                "state": "Failed",
                "error": RequestError(code="io_exception", message="the snapshot failed"),
            }
        asked.view = asked.view.model_copy(update=changes)
        if isinstance(body, StopBody) and not failed and not self.habits.linger:
            self._stopped(body, changes.get("savepoint"))

    def _rescale(self, body: RescaleBody, now: datetime) -> bool:
        """Executors come and go, and their subtasks move with a checkpoint."""
        if self.habits.rescale_fails or body.executors is None:
            return False
        self.executors = body.executors
        if self._checkpoint(now) is None:
            return False
        self.executors_ready = self.executors
        if body.parallelism not in (None, self.parallelism):
            self.parallelism, self.parallel_since = body.parallelism or 1, now
        return True

    def _failed(self, exit_code: int, code: str, message: str) -> None:
        self._end("Failed", exit_code, code, message)

    def _stopped(self, body: StopBody, savepoint: SavepointInfo | None) -> None:
        assert self.writer is not None
        if body.release:
            self.writer.append(Released(self.writer.fence, "the job was deleted"))
        self._end("Stopped", 0, savepoint=savepoint, released=body.release)

    def _end(
        self,
        outcome: Any,
        exit_code: int,
        code: str = "",
        message: str = "",
        savepoint: SavepointInfo | None = None,
        *,
        released: bool = False,
    ) -> None:
        self.exit_code = exit_code
        self.end = DriverEnd(
            attempt=self.order.attempt,
            outcome=outcome,
            code=code,
            message=message,
            lineage=self.writer.lineage if self.writer else "",
            fence=self.writer.fence if self.writer else 0,
            epoch=self.epoch,
            restored_from=self.restored,
            last_checkpoint=self.last_checkpoint,
            savepoint=savepoint,
            released=released,
        )


def _attempt_of(body: BaseModel) -> str:
    """The attempt id in the savepoint's directory."""
    return str(getattr(body, "attempt", None) or getattr(body, "request_id", ""))
