"""The local directory of one range: what lies where, and what may be deleted when.

    <local_dir>/LINEAGE         which lineage the directory belongs to, where several may come to it
    <local_dir>/ranges/<uid>/<start>-<end>/
        LOCK                    held (flock) by the process that has the range open
        work-<uuid>/            the open database; never trusted, always deleted when opening
        ckpt/<checkpoint id>/   hard-linked copies; `.tmp` while they are being made
        deltas/<run>/           delta files: `<epoch>-<digest>.delta`, attempts end in `.tmp`
        import-<n>/             other ranges' files while a rescale reads them

Called by the lease table, restore and snapshots. The files inside are RocksDB's and `deltas`'
business. A local directory belongs to one lineage.
"""

import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from moorage_state.errors import LocalDiskError, Retryable
from moorage_state.server.api import RangeSpec

__all__ = ["RangeDirectory", "adopt", "disk_errors", "link_or_copy", "run_order"]

_RANGE = re.compile(r"(\d+)-(\d+)\Z")
_UNCHANGING = {".sst", ".heap"}
_RUN = re.compile(r"f(\d+)r(\d+)\Z")


def run_order(run: str) -> tuple[int, int] | None:
    """What orders run tokens (`f<fence>r<run>`), None for text that is none."""
    match = _RUN.match(run)
    return (int(match[1]), int(match[2])) if match else None


@contextmanager
def disk_errors(what: str, path: Path) -> Iterator[None]:
    """Turn an `OSError` into a `LocalDiskError` that says what failed where."""
    try:
        yield
    except OSError as error:
        raise LocalDiskError(
            f"could not {what}: path={path} error={error}; check space and health of this volume"
        ) from error


def link_or_copy(source: Path, target: Path) -> None:
    """Hard-link what never changes; copy all others, to which RocksDB may append."""
    if source.suffix in _UNCHANGING:
        with suppress(OSError):
            os.link(source, target)
            return
    shutil.copyfile(source, target)


def adopt(local_dir: Path, lineage: str) -> bool:
    """See `StateApi.adopt`. The servers of one directory may do this at the same time."""
    marker = local_dir / "LINEAGE"
    with disk_errors("adopt a local directory", local_dir), (local_dir / "ADOPTING").open("w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        if marker.exists() and marker.read_text() == lineage:
            return False
        found = [path for path in local_dir.glob("ranges/*/*") if _RANGE.match(path.name)]
        for path in found:
            start, end = path.name.split("-")
            other = RangeDirectory(local_dir, RangeSpec(path.parent.name, int(start), int(end)))
            other.lock()
            try:
                _remove(other.root)
            finally:
                other.unlock()
        fresh = marker.with_suffix(".tmp")
        fresh.write_text(lineage)
        fresh.replace(marker)
        return bool(found)


class RangeDirectory:
    """Paths and clean-up of one range. The lock must be held for everything that deletes."""

    def __init__(self, local_dir: Path, spec: RangeSpec) -> None:
        self.spec = spec
        self._local_dir = local_dir
        self.root = local_dir / "ranges" / spec.uid / f"{spec.start}-{spec.end}"
        self.checkpoints = self.root / "ckpt"
        self._lock: int | None = None

    def lock(self) -> None:
        """Make the directory and take its lock, which the kernel frees when the process ends.

        Raises:
            Retryable: another process has the range open.
        """
        with disk_errors("make a range directory", self.root):
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.root / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise Retryable(
                f"another state server has the range open: path={self.root}; "
                f"release it there, or end that process"
            ) from error
        self._lock = descriptor

    def unlock(self) -> None:
        """Free the lock; idempotent."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def of(self, spec: RangeSpec) -> "RangeDirectory":
        """The directory of another range on this volume."""
        return RangeDirectory(self._local_dir, spec)

    def work(self, backend_uuid: str) -> Path:
        """Where the open database lies."""
        return self.root / f"work-{backend_uuid}"

    def checkpoint(self, checkpoint_id: int) -> Path:
        """Where the local copy of a checkpoint lies."""
        return self.checkpoints / str(checkpoint_id)

    def deltas(self, run: str) -> Path:
        """Where the deltas of a run lie."""
        return self.root / "deltas" / run

    def prepare(self, run: str, keep_checkpoint: int | None) -> None:
        """Delete what no longer counts when `run` opens the range, and make its directories.

        That is every work directory, unfinished copies, local checkpoints other than
        `keep_checkpoint`, and the deltas of older runs.
        """
        with disk_errors("clean a range directory", self.root):
            for path in self.root.iterdir():
                if path.name.startswith(("work-", "import-")):
                    _remove(path)
            for path in self.checkpoints.iterdir():
                if path.name != str(keep_checkpoint):
                    _remove(path)
            self._drop_older_runs(run)
            self.deltas(run).mkdir(parents=True, exist_ok=True)

    def _drop_older_runs(self, run: str) -> None:
        deltas, order = self.root / "deltas", run_order(run)
        if order is None or not deltas.is_dir():
            return
        for path in deltas.iterdir():
            other = run_order(path.name)
            # The deltas of a newer run stay: this one may be a stalled driver.
            if other is not None and other < order:
                _remove(path)

    def local_checkpoints(self) -> list[int]:
        """The ids of the whole local copies."""
        names = (path.name for path in self.checkpoints.iterdir())
        return sorted(int(name) for name in names if name.isdecimal())

    def drop_checkpoints(self, choose: Callable[[int], bool]) -> None:
        """Delete the local copies whose id is chosen."""
        for checkpoint_id in self.local_checkpoints():
            if choose(checkpoint_id):
                _remove(self.checkpoint(checkpoint_id))

    def drop_overlapping_neighbours(self) -> None:
        """Delete directories of another parallelism that hold some of these key groups.

        One that a process has open is left alone.
        """
        for path in self.root.parent.iterdir():
            match = _RANGE.match(path.name)
            if match is None or path == self.root:
                continue
            start, end = int(match[1]), int(match[2])
            if start > self.spec.end or end < self.spec.start:
                continue
            neighbour = self.of(RangeSpec(self.spec.uid, start, end))
            with suppress(Retryable, LocalDiskError):
                neighbour.lock()
                _remove(neighbour.root)
            neighbour.unlock()

    def remove_work(self, backend_uuid: str) -> None:
        """Delete a closed database."""
        _remove(self.work(backend_uuid))


def _remove(path: Path) -> None:
    # What a crash leaves half deleted is deleted at the next opening.
    shutil.rmtree(path, ignore_errors=True)
