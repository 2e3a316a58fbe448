"""The lineage of a driver without Spark: a real log, real manifests, and one number for state."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from moorage_api.driver import CheckpointSummary, RestoredFrom, SavepointInfo, StartOrder
from moorage_state.errors import Fenced, MoorageError, UserError
from moorage_state.snapshots import (
    LineageLog,
    LogWriter,
    Manifest,
    Owner,
    Run,
    Savepoint,
    checkpoint_id_of,
    checkpoint_path,
    encode_manifest,
    manifest_digest,
    may_have_had,
    restore_point,
)
from moorage_state.snapshots.savepoints import MANIFEST_KEY
from moorage_testing.manifests import checkpoint_manifest
from moorage_testing.world.buckets import Buckets
from moorage_testing.world.habits import Habits, Restored

__all__ = ["LineageKeeper"]

_OUTDATED = timedelta(seconds=300)


def _refusal(code: str, text: str) -> UserError:
    error = UserError(text)
    error.code = code  # type: ignore[misc]  # as the driver's refusals have it
    return error


@dataclass(slots=True, kw_only=True)
class LineageKeeper:
    """What a driver keeps in its store, from the claim on."""

    pod: str
    namespace: str
    manifest: dict[str, Any]
    order: StartOrder
    buckets: Buckets
    habits: Habits
    restored_list: list[Restored]
    phase: str = "starting"
    writer: LogWriter | None = None
    epoch: int = 0
    restored: RestoredFrom | None = None
    last_checkpoint: CheckpointSummary | None = None
    last_savepoint: SavepointInfo | None = None
    checkpoint_at: datetime | None = None
    completed: int = 0
    failed_in_a_row: int = 0
    storage_error: str = ""
    storage_error_at: datetime | None = None
    hung: bool = False  # it makes no epochs and no checkpoints, and answers
    _first_newest: int = 0

    @property
    def stands_still(self) -> bool:
        """Whether its stream gets nowhere."""
        return self.hung or self.habits.stuck

    @property
    def directory(self) -> str:
        """The checkpoint directory."""
        return str(self.manifest["spec"]["state"]["checkpointDir"])

    @property
    def interval(self) -> float:
        """Seconds between checkpoints."""
        text = self.manifest["spec"].get("checkpoint", {}).get("interval") or "60s"
        return float(str(text).removesuffix("s"))

    def _failed(self, exit_code: int, code: str, message: str) -> None:
        """The driver cannot go on."""
        raise NotImplementedError

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
            self._failed(4, code, str(error))

    def _look(self) -> bool:
        """Begin beside whoever has the lineage: its newest checkpoint, and nothing is claimed."""
        try:
            self.buckets.check()
            point = restore_point(
                [e for _, e in LineageLog.open(self.buckets.store(self.directory)).read()]
            )
            if point is None or point.checkpoint is None:
                raise UserError("there is no checkpoint to stand by with")
        except MoorageError as error:
            self._failed(4, "store_unavailable" if self.buckets.down else error.code, str(error))
            return False
        self.epoch = point.checkpoint.epoch
        return True

    def _restore(self) -> None:
        assert self.writer is not None
        entries = self.writer.entries
        newest = restore_point(entries)
        order = self.order.restore
        folder, _, known = order.path.rpartition("/")
        here = order.mode == "Latest" and folder in (
            self.directory,
            self.buckets.url(self.directory),
        )
        known_id = checkpoint_id_of(known) if here else None
        if known_id is not None and not may_have_had(entries, known_id):
            raise _refusal(
                "restore_point_not_found", f"the checkpointDir has never had it: checkpoint={known}"
            )
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
        only = self.habits.fail_restore_of or self.manifest["spec"].get("image")
        if self.habits.fail_restore and self.manifest["spec"].get("image") == only:
            self._failed(5, self.habits.fail_restore, "the restore point is damaged")
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
            raise _refusal("restore_point_not_found", f"no savepoint here: path={path}")
        manifest = self.buckets.savepoint(path).load()
        data = self.buckets.store(path).get(MANIFEST_KEY)
        if digest and manifest_digest(data) != digest:
            raise _refusal("restore_point_changed", f"another savepoint lies here: path={path}")
        return manifest

    def _checkpoint(self, now: datetime) -> CheckpointSummary | None:
        assert self.writer is not None
        self.checkpoint_at = now + timedelta(seconds=self.interval)
        if self.stands_still:
            # What is beside the stream sees in time that the store is there.
            tried = self.storage_error_at
            if not self.buckets.down and tried and now - tried > _OUTDATED:
                self.storage_error = ""
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
            self.storage_error_at = now
            return None
        self.failed_in_a_row = 0
        self.completed += 1
        self.last_checkpoint = CheckpointSummary(
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
        return checkpoint_manifest(
            self.writer.lineage,
            checkpoint_id,
            fence=self.writer.fence,
            kind="savepoint" if name else "checkpoint",
            name=name,
            epoch=self.epoch,
            created_at=now,
            job_name=self.manifest["metadata"]["name"],
            max_parallelism=self.manifest["spec"]["scaling"].get("maxParallelism", 128),
        )

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
            self.storage_error_at = now
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
