"""Drivers without Spark: each keeps a real lineage log, and its state is one number.

The number counts epochs, so a restore point says exactly how much of the stream it holds. What a
driver does is what `docs/driver-endpoint.md` says of the real one, at the speed of a fake clock.
"""

import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import yaml
from pydantic import BaseModel

from moorage_api.driver import (
    CHECKPOINTS_PATH,
    SAVEPOINTS_PATH,
    STOP_PATH,
    CheckpointBody,
    CheckpointInfo,
    DriverEnd,
    DriverState,
    RequestError,
    RequestView,
    RestoredFrom,
    SavepointBody,
    SavepointInfo,
    StartOrder,
    StopBody,
)
from moorage_operator.ports import DriverTarget, EndpointRefused, EndpointUnreachable
from moorage_state.errors import Fenced, MoorageError, UserError
from moorage_state.snapshots import (
    LogWriter,
    Manifest,
    Owner,
    Released,
    Run,
    Savepoint,
    checkpoint_id_of,
    checkpoint_path,
    encode_manifest,
    manifest_digest,
    restore_point,
)
from moorage_state.snapshots.savepoints import MANIFEST_KEY
from moorage_testing.world.buckets import Buckets

__all__ = ["Drivers", "FakeDriver", "Habits", "Restored", "Violation"]


class Violation(AssertionError):
    """Something happened that must never happen."""


@dataclass(slots=True)
class Habits:
    """How drivers of a world behave; a test changes them at any time.

    Attributes:
        boot: seconds from the container's start to the fence.
        restore: seconds from the fence to the first epoch.
        epoch: seconds that an epoch takes.
        snapshot: seconds that a checkpoint or savepoint takes.
        savepoints_fail: how many of the next savepoints fail.
        deaf: drivers do not answer.
        stuck: drivers make no epochs and no checkpoints.
        ignore_stop: a driver that is told to stop goes on.
        fail_restore: what a start ends with, instead of running.
        finish_at: the epoch with which the input ends.
    """

    boot: float = 4.0
    restore: float = 3.0
    epoch: float = 1.0
    snapshot: float = 2.0
    savepoints_fail: int = 0
    deaf: bool = False
    stuck: bool = False
    ignore_stop: bool = False
    fail_restore: str = ""
    finish_at: int = 0


@dataclass(frozen=True, slots=True)
class Restored:
    """What a start began from.

    Attributes:
        newest: the epoch of the newest checkpoint that the lineage had at that moment.
        explicit: a person, or an operation on a savepoint, chose it.
    """

    attempt: int
    fence: int
    epoch: int
    newest: int
    explicit: bool
    path: str | None


@dataclass(slots=True)
class _Asked:
    """One request."""

    body: BaseModel
    kind: str
    view: RequestView
    due: datetime | None = None


@dataclass(slots=True)
class FakeDriver:
    """One driver, from its container's start to its end."""

    pod: str
    pod_uid: str
    namespace: str
    manifest: dict[str, Any]
    order: StartOrder
    token: str
    started: datetime
    buckets: Buckets
    habits: Habits
    restored_list: list[Restored]
    phase: str = "starting"
    writer: LogWriter | None = None
    epoch: int = 0
    last_epoch_at: datetime | None = None
    running_since: datetime | None = None
    restored: RestoredFrom | None = None
    last_checkpoint: CheckpointInfo | None = None
    last_savepoint: SavepointInfo | None = None
    checkpoint_at: datetime | None = None
    completed: int = 0
    failed_in_a_row: int = 0
    storage_error: str = ""
    end: DriverEnd | None = None
    exit_code: int = 0
    asked: dict[str, _Asked] = field(default_factory=dict)
    stopping: StopBody | None = None
    term_at: datetime | None = None
    parallelism: int = 0
    cut_off: bool = False
    _first_newest: int = 0

    # -- facts ---------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.end is None and self.exit_code == 0

    @property
    def directory(self) -> str:
        """The checkpoint directory."""
        return str(self.manifest["spec"]["state"]["checkpointDir"])

    @property
    def interval(self) -> float:
        """Seconds between checkpoints."""
        text = self.manifest["spec"].get("checkpoint", {}).get("interval") or "60s"
        return float(str(text).removesuffix("s"))

    def state(self) -> DriverState:
        """What it says of itself."""
        return DriverState(
            attempt=self.order.attempt,
            job_uid=self.order.job_uid,
            phase=self.phase,
            lineage=self.writer.lineage if self.writer else "",
            fence=self.writer.fence if self.writer else 0,
            epoch=self.epoch,
            parallelism=self.parallelism if self.running_since else 0,
            max_parallelism=self.manifest["spec"]["scaling"].get("maxParallelism", 128),
            executors_desired=1,
            executors_ready=1 if self.running_since else 0,
            last_progress_time=self.last_epoch_at,
            running_since=self.running_since,
            restored_from=self.restored,
            last_checkpoint=self.last_checkpoint,
            last_savepoint=self.last_savepoint,
            completed_checkpoints=self.completed,
            consecutive_failed_checkpoints=self.failed_in_a_row,
            storage_error=self.storage_error,
            requests=tuple(asked.view for asked in self.asked.values()),
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
                self._claim(now)
            return
        if self.phase == "restoring":
            since = self.started + timedelta(seconds=self.habits.boot + self.habits.restore)
            if self.term_at is not None:
                self._end("Stopped", 0)
            elif now >= since:
                self._begin(now)
            return
        self._run_epochs(now)
        self._serve(now)
        if self.alive and self.checkpoint_at and now >= self.checkpoint_at:
            self._checkpoint(now)
        if self.alive and self.term_at is not None:
            self._checkpoint(now)
            self._end("Stopped", 0)

    def _claim(self, now: datetime) -> None:
        meta = self.manifest["metadata"]
        owner = Owner(self.order.cluster_id, self.namespace, meta["name"], self.order.job_uid)
        try:
            self.buckets.check()
            self.writer = LogWriter.claim(
                self.buckets.store(self.directory),
                owner,
                self.pod,
                adopt=self.order.adopt_lineage,
                clock=lambda: now,
            )
            self._restore()
        except Fenced:
            raise
        except MoorageError as error:
            code = "store_unavailable" if self.buckets.down else error.code
            code = "store_denied" if self.buckets.denied else code
            self._end("Failed", 4, code, str(error))

    def _restore(self) -> None:
        assert self.writer is not None
        entries = self.writer.entries
        newest = restore_point(entries)
        order = self.order.restore
        followed = order.order_id and any(
            isinstance(e, Run) and e.order_id == order.order_id for e in entries
        )
        explicit = order.mode != "Latest" and not followed
        path, found = None, None
        if explicit and order.mode == "Path":
            path, found = order.path, self._load(order.path, order.digest)
        elif not explicit and newest is not None:
            path = newest.path
            found = self._load(newest.path, "")
        if self.habits.fail_restore:
            self._end("Failed", 5, self.habits.fail_restore, "the restore point is damaged")
            return
        self.epoch = found.epoch if found else 0
        self._first_newest = max((e for _, e in self._points()), default=0)
        fence = self.writer.fence
        self.writer.append(
            Run(fence, 0, path, explicit=explicit, order_id=order.order_id if explicit else "")
        )
        if found is not None and path is not None:
            self.restored = RestoredFrom(
                path=path, checkpoint_id=found.checkpoint_id, completed_at=found.created_at
            )
        self.restored_list.append(
            Restored(self.order.attempt, fence, self.epoch, self._first_newest, explicit, path)
        )
        self.phase = "restoring"

    def _points(self) -> Iterator[tuple[int, int]]:
        """Ids and epochs of the checkpoints that count now: those before a rewind do not."""
        assert self.writer is not None
        point = restore_point(self.writer.entries)
        if point is not None:
            manifest = self._load(point.path, "")
            yield manifest.checkpoint_id, manifest.epoch

    def _load(self, path: str, digest: str) -> Manifest:
        """The manifest at an address, or of `chk-<id>`."""
        assert self.writer is not None
        checkpoint_id = checkpoint_id_of(path.rpartition("/")[2])
        if checkpoint_id is not None:
            store = self.buckets.checkpoints(self.directory)
            return store.load_id(self.writer.entries, checkpoint_id)
        if not self.buckets.has_savepoint(path):
            error = UserError(f"no savepoint here: path={path}")
            error.code = "restore_point_not_found"  # type: ignore[misc]
            raise error
        manifest = self.buckets.savepoint(path).load()
        data = self.buckets.store(path).get(MANIFEST_KEY)
        if digest and manifest_digest(data) != digest:
            error = UserError(f"another savepoint lies here: path={path}")
            error.code = "restore_point_changed"  # type: ignore[misc]
            raise error
        return manifest

    def _begin(self, now: datetime) -> None:
        self.phase = "running"
        self.running_since = self.last_epoch_at = now
        self.parallelism = self.manifest["spec"]["scaling"]["parallelism"]
        self.checkpoint_at = now + timedelta(seconds=self.interval)

    def _run_epochs(self, now: datetime) -> None:
        assert self.last_epoch_at is not None
        if self.habits.stuck:
            return
        step = timedelta(seconds=self.habits.epoch)
        while self.last_epoch_at + step <= now:
            self.last_epoch_at += step
            self.epoch += 1
            if self.habits.finish_at and self.epoch >= self.habits.finish_at:
                self._checkpoint(now)
                if self.alive:
                    self._end("Finished", 0)
                return

    def _checkpoint(self, now: datetime) -> CheckpointInfo | None:
        assert self.writer is not None
        self.checkpoint_at = now + timedelta(seconds=self.interval)
        if self.habits.stuck:
            return None
        try:
            self.buckets.check()
            self.storage_error = ""
            store = self.buckets.checkpoints(self.directory)
            checkpoint_id = store.next_id(self.writer.entries)
            entry = store.complete(self.writer, self._manifest_of(checkpoint_id, now), now)
        except Fenced:
            raise
        except MoorageError as error:
            self.failed_in_a_row += 1
            self.storage_error = str(error)
            return None
        self.failed_in_a_row = 0
        self.completed += 1
        self.last_checkpoint = CheckpointInfo(
            id=entry.checkpoint_id,
            path=f"{self.directory}/{checkpoint_path(entry.checkpoint_id)}",
            epoch=entry.epoch,
            completed_at=now,
            size_bytes=1000,
            duration_ms=int(self.habits.snapshot * 1000),
        )
        return self.last_checkpoint

    def _manifest_of(self, checkpoint_id: int, now: datetime, name: str = "") -> Manifest:
        assert self.writer is not None
        return Manifest(
            kind="savepoint" if name else "checkpoint",
            name=name,
            lineage=self.writer.lineage,
            checkpoint_id=checkpoint_id,
            epoch=self.epoch,
            fence=self.writer.fence,
            run=0,
            created_at=now,
            job_name=self.manifest["metadata"]["name"],
            moorage_version="0",
            max_parallelism=self.manifest["spec"]["scaling"].get("maxParallelism", 128),
            operators={},
            source={},
        )

    # -- requests ------------------------------------------------------------------------------

    def ask(self, path: str, body: BaseModel) -> RequestView:
        """Take up a request, or say how the one of this id stands."""
        assert isinstance(body, (CheckpointBody, SavepointBody, StopBody))
        known = self.asked.get(body.request_id)
        if known is not None:
            if known.body != body:
                raise EndpointRefused("request_conflict", "the id was used for something else")
            return known.view
        kinds = {CHECKPOINTS_PATH: "Checkpoint", SAVEPOINTS_PATH: "Savepoint", STOP_PATH: "Stop"}
        if path not in kinds:
            raise EndpointRefused("restart_needed", "not live")
        view = RequestView(request_id=body.request_id, kind=kinds[path], state="Pending")  # type: ignore[arg-type]
        self.asked[body.request_id] = _Asked(body, kinds[path], view)
        return view

    def _serve(self, now: datetime) -> None:
        for asked in list(self.asked.values()):
            if not self.alive or asked.view.state in ("Completed", "Failed") or self.habits.stuck:
                continue
            if asked.due is None:
                asked.due = now + timedelta(seconds=self.habits.snapshot)
                asked.view = asked.view.model_copy(update={"state": "Running"})
            elif now >= asked.due:
                self._answer(asked, now)

    def _answer(self, asked: _Asked, now: datetime) -> None:
        body = asked.body
        if isinstance(body, StopBody) and self.habits.ignore_stop:
            return
        changes: dict[str, Any] = {"state": "Completed"}
        if isinstance(body, CheckpointBody) or (
            isinstance(body, StopBody) and body.mode == "Checkpoint"
        ):
            changes["checkpoint"] = self._checkpoint(now)
            failed = changes["checkpoint"] is None
        elif isinstance(body, SavepointBody) or body.mode == "Savepoint":  # type: ignore[attr-defined]
            if isinstance(body, StopBody):
                self._checkpoint(now)
            changes["savepoint"] = self._savepoint(str(body.name), _attempt_of(body), now)  # type: ignore[attr-defined]
            failed = changes["savepoint"] is None
        else:
            failed = False
        if failed:
            changes = {
                "state": "Failed",
                "error": RequestError(code="io_exception", message="the snapshot failed"),
            }
        asked.view = asked.view.model_copy(update=changes)
        if isinstance(body, StopBody) and not failed:
            self._stopped(body, changes.get("savepoint"))

    def _stopped(self, body: StopBody, savepoint: SavepointInfo | None) -> None:
        assert self.writer is not None
        if body.release:
            self.writer.append(Released(self.writer.fence, "the job was deleted"))
        self._end("Stopped", 0, savepoint=savepoint, released=body.release)

    def _savepoint(self, name: str, attempt: str, now: datetime) -> SavepointInfo | None:
        assert self.writer is not None
        if self.habits.savepoints_fail > 0:
            self.habits.savepoints_fail -= 1
            return None
        address = f"{self.manifest['spec']['state']['savepointDir']}/{name}"
        try:
            self.buckets.check()
            store = self.buckets.savepoint(address)
            done = store.completed_by(attempt)
            if done is None:
                store.begin(attempt)
                checkpoint_id = self.buckets.checkpoints(self.directory).next_id(
                    self.writer.entries
                )
                done = self._manifest_of(checkpoint_id, now, name)
                digest = manifest_digest(encode_manifest(done))
                self.writer.append(
                    Savepoint(self.writer.fence, 0, checkpoint_id, address, digest, done.epoch, now)
                )
                store.create(done)
        except Fenced:
            raise
        except MoorageError as error:
            self.storage_error = str(error) if self.buckets.down else ""
            return None
        data = self.buckets.store(address).get(MANIFEST_KEY)
        self.last_savepoint = SavepointInfo(
            name=name,
            path=address,
            checkpoint_id=done.checkpoint_id,
            epoch=done.epoch,
            size_bytes=1000,
            manifest_digest=manifest_digest(data),
            max_parallelism=done.max_parallelism,
            completed_at=now,
        )
        return self.last_savepoint

    def _end(
        self,
        outcome: str,
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
            outcome=outcome,  # type: ignore[arg-type]
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


class Drivers:
    """All drivers of a world, and the door through which the operator asks them."""

    def __init__(self, buckets: Buckets, now: Callable[[], datetime]) -> None:
        self.buckets = buckets
        self.habits = Habits()
        self.by_pod: dict[str, FakeDriver] = {}
        self.restored: list[Restored] = []
        self._now = now

    def start(self, pod: dict[str, Any], config: dict[str, str], token: str) -> FakeDriver:
        """A driver's container starts."""
        meta = pod["metadata"]
        driver = FakeDriver(
            pod=meta["name"],
            pod_uid=meta["uid"],
            namespace=meta["namespace"],
            manifest=yaml.safe_load(config["job.yaml"]),
            order=StartOrder.model_validate(json.loads(config["start.json"])),
            token=token,
            started=self._now(),
            buckets=self.buckets,
            habits=self.habits,
            restored_list=self.restored,
        )
        self.by_pod[meta["uid"]] = driver
        return driver

    def tick(self) -> None:
        """Let all drivers do what is due."""
        for driver in list(self.by_pod.values()):
            driver.tick(self._now())

    @property
    def living(self) -> list[FakeDriver]:
        """Those whose process runs."""
        return [driver for driver in self.by_pod.values() if driver.alive]

    @property
    def newest(self) -> FakeDriver:
        """The one that started last."""
        return list(self.by_pod.values())[-1]

    async def state(self, target: DriverTarget) -> DriverState:
        """See `moorage_operator.ports.DriverClient`."""
        return self._reach(target).state()

    async def ask(self, target: DriverTarget, path: str, body: BaseModel) -> RequestView:
        """See `moorage_operator.ports.DriverClient`."""
        return self._reach(target).ask(path, body)

    def _reach(self, target: DriverTarget) -> FakeDriver:
        for driver in self.living:
            deaf = self.habits.deaf or driver.cut_off
            if address_of(driver.pod_uid) == target.ip and not deaf:
                if driver.token != target.token:
                    raise EndpointRefused("unauthorized", "wrong token")
                return driver
        raise EndpointUnreachable(f"no answer: ip={target.ip}")


def _attempt_of(body: BaseModel) -> str:
    """The attempt id in the savepoint's directory."""
    return str(getattr(body, "attempt", None) or getattr(body, "request_id", ""))


def address_of(pod_uid: str) -> str:
    """The address of a pod; another one for each."""
    number = zlib.crc32(pod_uid.encode()) % (1 << 22)
    return f"10.{64 + (number >> 16)}.{(number >> 8) & 255}.{number & 255}"
