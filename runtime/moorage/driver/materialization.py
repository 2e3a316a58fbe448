"""Materialization of a changelog: when ranges are copied whole, and what becomes of the copies.

With a changelog checkpoints list deltas. Decides with which of them a copy of all ranges is taken,
which then goes to the store in the background, however long that takes; later checkpoints begin
with it, and the deltas before it go with the last checkpoint that lists them. Called by the
checkpointer, under the run's epoch lock.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Protocol

from moorage.driver.housekeeping import Background
from moorage.driver.reporter import Reporter
from moorage.driver.views import ChangelogView
from moorage.engine.fleet import FleetUpload
from moorage_state.errors import Bug, Fenced, MoorageError, ServerGone, StaleLease, VersionGone
from moorage_state.server.operations import SnapshotWay
from moorage_state.tuning import ChangelogOptions

_log = logging.getLogger(__name__)

_PERSIST_SECONDS = 1.0
"""Between two looks whether servers have deltas enough to upload ahead."""


class Copies(Protocol):
    """What a `RangeFleet` does of it."""

    def persist(self, least_bytes: int) -> FleetUpload:
        """Bring deltas that no checkpoint lists to the store, where a server has so many bytes."""

    def materialize(self, checkpoint_id: int) -> FleetUpload:
        """Bring the copies that were taken with this checkpoint to the store."""

    def aborted(self, checkpoint_id: int) -> None:
        """The copies can go."""


class Materialization:
    """The background copies of one run.

    Args:
        options: the job's.
        wall: seconds since 1970.

    Attributes:
        uploads: whether a copy waits for its checkpoint, or is on its way to the store.
    """

    def __init__(
        self,
        options: ChangelogOptions,
        fleet: Copies,
        background: Background,
        reporter: Reporter,
        clock: Callable[[], float],
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._options = options
        self._fleet = fleet
        self._background = background
        self._reporter = reporter
        self._clock = clock
        self._wall = wall
        self._last = clock()
        self._base_at = self._copied_at = wall()
        self._failures = 0
        self._copied: int | None = None
        self._lists: int | None = None
        self.uploads = False
        self._began = 0.0
        self._persisted = 0
        self._persists = False
        self._asked = float("-inf")

    def restored(self, base_ms: int | None) -> None:
        """The run goes on with the log that a checkpoint lists; what that said of its base.

        Else the log of runs that are all shorter than the interval would grow without end.
        """
        now = self._wall()
        self._base_at = min(now, base_ms / 1000) if base_ms is not None else now
        self._last = self._clock() - (now - self._base_at)

    @property
    def base_ms(self) -> int:
        """When what the next checkpoint begins with was copied, in milliseconds since 1970."""
        return int(1000 * (self._copied_at if self.waits else self._base_at))

    @property
    def unlisted(self) -> tuple[int, ...]:
        """The copy that is in the store, or on its way, and in no checkpoint yet."""
        return () if self._copied is None else (self._copied,)

    @property
    def waits(self) -> bool:
        """Whether a copy is in the store, and the next checkpoint is the first to begin with it."""
        return self._copied is not None and not self.uploads

    def way(self, checkpoint_id: int, *, builds: bool) -> SnapshotWay:
        """How the next checkpoint is taken.

        Args:
            builds: there is a completed one that it may reference.
        """
        options = self._options
        if self.waits:
            self._lists = checkpoint_id
        if not builds:
            self._last, self._base_at = self._clock(), self._wall()
            return "log"  # which begins with a copy
        due = options.materializes and self._clock() - self._last >= options.interval_seconds
        if not due or self._copied is not None:
            return "log"
        self._copied, self.uploads, self._copied_at = checkpoint_id, True, self._wall()
        return "log and copy"

    def ahead(self, epoch: int) -> None:
        """At a boundary: have deltas uploaded, so that the next checkpoint need not."""
        now = self._clock()
        if self._persists or epoch <= self._persisted or now - self._asked < _PERSIST_SECONDS:
            return
        self._persists, self._persisted, self._asked = True, epoch, now
        action = partial(self._fleet.persist, self._options.persists_at)
        self._background.run("persist", action, self._went_ahead)

    def _went_ahead(self, result: FleetUpload | BaseException) -> None:
        self._persists = False
        if isinstance(result, BaseException):
            if not isinstance(result, MoorageError) or isinstance(result, (Fenced, Bug)):
                raise result
            # The next checkpoint uploads them.
            _log.info("deltas were not uploaded ahead: %s", result)
        self.uploaded(result, self._clock() - self._asked)

    def uploaded(self, result: FleetUpload | BaseException, seconds: float) -> None:
        """Deltas went to the store, with a checkpoint or ahead of one, or did not."""
        if isinstance(result, BaseException):
            self._tell(failed_uploads=1)
        elif result.bytes_written:
            self._tell(
                uploads=1,
                upload_seconds=seconds,
                upload_bytes=result.bytes_written,
                upload_objects=result.objects,
                upload_attempts=result.attempts,
            )

    def completed(self, checkpoint_id: int) -> None:
        """A checkpoint completed: the copy that was taken with it can go to the store."""
        if checkpoint_id == self._copied:
            self._last = self._began = self._clock()
            self._tell(started=1)
            self._background.run(
                f"materialize-{checkpoint_id}",
                partial(self._fleet.materialize, checkpoint_id),
                partial(self._materialized, checkpoint_id),
            )
        elif checkpoint_id == self._lists:
            self._copied, self._lists, self._base_at = None, None, self._copied_at

    def aborted(self, checkpoint_id: int) -> None:
        """A checkpoint failed: a copy that it took goes, and one that it was the first to list."""
        if checkpoint_id in {self._copied, self._lists}:
            self._copied = self._lists = None
            self.uploads = False

    def _materialized(self, checkpoint_id: int, result: FleetUpload | BaseException) -> None:
        if checkpoint_id != self._copied:
            return
        self.uploads = False
        if not isinstance(result, BaseException):
            self._failures = 0
            seconds = self._clock() - self._began
            self._tell(completed=1)
            view = self._reporter.progress.changelog or ChangelogView()
            newest = replace(view, last_seconds=seconds, last_bytes=result.bytes_written)
            self._reporter.changelog(newest)
            return
        self._copied = None
        if not isinstance(result, MoorageError) or isinstance(result, (Fenced, Bug)):
            raise result
        self._fleet.aborted(checkpoint_id)
        _log.warning("state was not materialized: checkpoint=%d: %s", checkpoint_id, result)
        # A server that is gone is no failure of it: the run goes on elsewhere, or ends.
        if isinstance(result, (ServerGone, VersionGone, StaleLease)):
            return
        self._failures += 1
        self._tell(failed=1)
        if self._failures > self._options.max_failures:
            raise result

    def _tell(self, **more: float) -> None:
        """Add to the figures of these names."""
        view = self._reporter.progress.changelog or ChangelogView()
        sums = {name: getattr(view, name) + one for name, one in more.items()}
        self._reporter.changelog(replace(view, **sums))
