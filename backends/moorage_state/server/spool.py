"""The delta files of one range and run: attempts being staged, prepared deltas, committed ones.

Decides what a prepare finishes and which files a commit makes useless. Called by `OpenRange`.
Thread-safe: attempts of one epoch come on several connections. Never touches the database.
"""

import re
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from moorage_state.deltas import (
    DeltaHeader,
    DeltaWriter,
    decode_frame,
    delta_name,
    parse_delta_name,
)
from moorage_state.errors import Bug, MoorageError, Retryable, VersionGone, disk_errors
from moorage_state.server.operations import Prepared, RangeSpec, Version

_ATTEMPT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")


@dataclass(slots=True)
class _Attempt:
    """One attempt's unfinished delta."""

    writer: DeltaWriter
    # Orders frames against abort, which comes on another connection.
    lock: threading.Lock
    closed: bool = False


class DeltaSpool:
    """Delta files in `directory`, which exists.

    Args:
        run: the run token, written into every header.
        sync: fsync a delta before prepare answers, so that it survives a loss of power.
    """

    def __init__(self, directory: Path, spec: RangeSpec, run: str, *, sync: bool) -> None:
        self._directory = directory
        self._spec = spec
        self._run = run
        self._sync = sync
        self._lock = threading.Lock()
        self._attempts: dict[tuple[int, str], _Attempt] = {}
        self._prepared: dict[tuple[int, str], tuple[int, Prepared]] = {}
        self._files: set[Version] = set()
        self._committed: set[Version] = set()
        self._low = spec.start.to_bytes(2, "big")
        self._high = (spec.end + 1).to_bytes(2, "big")

    def recover(self, committed: Iterable[Version]) -> None:
        """Take over what an earlier process left: attempts are deleted, deltas kept."""
        known = set(committed)
        last = max((version.epoch for version in known), default=-1)
        self._committed |= known
        with disk_errors("read the deltas of a range", self._directory):
            for path in self._directory.iterdir():
                named = parse_delta_name(path.name)
                version = Version(*named) if named else None
                # Prepared and never committed, of an epoch that is over: nobody can ask for it any
                # more.
                if version is None or (version.epoch <= last and version not in known):
                    path.unlink(missing_ok=True)
                else:
                    self._files.add(version)

    def stage(self, attempt: str, header: DeltaHeader, frame: bytes, seq: int) -> None:
        """Append a frame; the first one begins the attempt. After an error the attempt is gone.

        Raises:
            Bug: a frame out of order, not a frame, or with keys outside the range.
            LocalDiskError: the volume is full.
        """
        if seq == 0:
            # The name is used again, so what was prepared under it is not what will be.
            with self._lock:
                self._prepared.pop((header.epoch, attempt), None)
        current = self._begin(attempt, header, seq)
        with current.lock:
            try:
                self._append(current, frame, seq)
            except MoorageError:
                self._forget((header.epoch, attempt), current)
                raise

    def prepare(self, attempt: str, header: DeltaHeader, frame_count: int) -> Prepared:
        """Finish an attempt's file and name it by its digest; see `RangeApi.prepare`."""
        key = (header.epoch, attempt)
        with self._lock:
            done = self._prepared.get(key)
        # The reply was lost and the call repeated.
        if done is not None and done[0] == frame_count:
            return done[1]
        # A subtask that changed nothing staged no frame: its delta is empty, and begins here.
        current = self._begin(attempt, header, 0 if frame_count == 0 else -1)
        with current.lock:
            try:
                prepared = self._finish(current, header, frame_count)
            except MoorageError:
                self._forget(key, current)
                raise
            current.closed = True
        with self._lock:
            self._attempts.pop(key, None)
            self._prepared[key] = (frame_count, prepared)
            self._files.add(Version(header.epoch, prepared.digest))
        return prepared

    def abort(self, epoch: int, attempt: str) -> None:
        """Forget an attempt, and its file unless that is committed or another attempt's too."""
        key = (epoch, attempt)
        with self._lock:
            current = self._attempts.get(key)
            prepared = self._prepared.pop(key, None)
            # Two attempts of one epoch make the same bytes, and so share one file.
            others = {p.digest for (other, _), (_, p) in self._prepared.items() if other == epoch}
        if current is not None:
            with current.lock:
                self._forget(key, current)
        if prepared is not None and prepared[1].digest not in others:
            self._drop({Version(epoch, prepared[1].digest)} - self._committed)

    def path(self, version: Version) -> Path:
        """The file of a finished delta. Raises `VersionGone` if it is not on this volume."""
        path = self._directory / delta_name(*version)
        if not path.exists():
            raise VersionGone(
                f"delta is not on this volume: path={path}; rewind the job to its last "
                f"completed checkpoint"
            )
        return path

    def committed(self, version: Version) -> None:
        """Drop every attempt and uncommitted delta up to the epoch of `version`."""
        with self._lock:
            self._committed.add(version)
            self._prepared = {
                key: done for key, done in self._prepared.items() if key[0] > version.epoch
            }
            late = [item for item in self._attempts.items() if item[0][0] <= version.epoch]
            useless = self._up_to(version.epoch) - self._committed
        self._drop(useless)
        for key, attempt in late:
            with attempt.lock:
                self._forget(key, attempt)

    def drop_through(self, epoch: int) -> None:
        """Delete all deltas up to `epoch`: a completed checkpoint contains them."""
        with self._lock:
            contained = self._up_to(epoch)
            self._committed -= contained
        self._drop(contained)

    @property
    def kept(self) -> dict[Version, Path]:
        """The committed deltas on this volume, and their files."""
        with self._lock:
            return {one: self._directory / delta_name(*one) for one in self._committed}

    def close(self) -> None:
        """Close and delete unfinished attempts."""
        with self._lock:
            attempts = list(self._attempts.items())
        for key, attempt in attempts:
            with attempt.lock:
                self._forget(key, attempt)

    def _up_to(self, epoch: int) -> set[Version]:
        return {version for version in self._files if version.epoch <= epoch}

    def _begin(self, attempt: str, header: DeltaHeader, seq: int) -> _Attempt:
        """The attempt's state; with `seq` 0 it may begin here."""
        key = (header.epoch, attempt)
        with self._lock:
            current = self._attempts.get(key)
            if current is not None:
                return current
            if seq != 0:
                raise Retryable(
                    f"the staged frames of an attempt are not here: uid={self._spec.uid} "
                    f"start={self._spec.start} epoch={header.epoch} attempt={attempt}; "
                    f"stage them again under another attempt"
                )
            if not _ATTEMPT.match(attempt):
                raise Bug(f"not the name of an attempt: attempt={attempt!r}")
            path = self._directory / f"{header.epoch:020d}-{attempt}.tmp"
            current = _Attempt(DeltaWriter(path, header), threading.Lock())
            self._attempts[key] = current
            return current

    def _append(self, current: _Attempt, frame: bytes, seq: int) -> None:
        if current.closed:
            raise Retryable(f"the attempt was aborted: path={current.writer.path}")
        if seq != current.writer.frames:
            raise Bug(
                f"frame of a delta out of order: path={current.writer.path} seq={seq} "
                f"expected={current.writer.frames}"
            )
        decoded = decode_frame(frame)
        self._check_keys(decoded.keys)
        for start, end in decoded.ranges:
            if not self._low <= start <= end <= self._high:
                raise self._outside(start)
        current.writer.append(frame, decoded.operations)

    def _check_keys(self, keys: list[bytes]) -> None:
        """The key group leads the key, so the least and the greatest tell for all."""
        if not keys:
            return
        least, greatest = min(keys), max(keys)
        if least < self._low or len(least) < 2:
            raise self._outside(least)
        if greatest >= self._high:
            raise self._outside(greatest)

    def _outside(self, key: bytes) -> Bug:
        return Bug(
            f"write outside the range: uid={self._spec.uid} start={self._spec.start} "
            f"end={self._spec.end} key={key[:32].hex()}"
        )

    def _finish(self, current: _Attempt, header: DeltaHeader, frame_count: int) -> Prepared:
        if current.closed or current.writer.frames != frame_count:
            raise Retryable(
                f"not all staged frames are here: path={current.writer.path} "
                f"frames={current.writer.frames} expected={frame_count}; "
                f"stage them again under another attempt"
            )
        if current.writer.header != header:
            raise Retryable(
                f"the range moved on while an attempt was staged: path={current.writer.path} "
                f"staged_on={current.writer.header.parent!r} prepared_on={header.parent!r}; "
                f"stage again under another attempt"
            )
        summary = current.writer.finish(sync=self._sync)
        final = self._directory / delta_name(header.epoch, summary.digest)
        with disk_errors("name a delta file", final):
            current.writer.path.replace(final)
        return Prepared(summary.digest, summary.operations, summary.size)

    def _forget(self, key: tuple[int, str], current: _Attempt) -> None:
        """Discard an unfinished attempt; the caller holds its lock."""
        if not current.closed:
            current.closed = True
            current.writer.discard()
        with self._lock:
            if self._attempts.get(key) is current:
                del self._attempts[key]

    def _drop(self, versions: Iterable[Version]) -> None:
        for version in versions:
            with self._lock:
                self._files.discard(version)
            # One that cannot be deleted is garbage, which the next opening tries again.
            with suppress(OSError):
                (self._directory / delta_name(*version)).unlink(missing_ok=True)
