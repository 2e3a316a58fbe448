"""Holding a job's lineage: its directory, the lock on it, then the fence.

Decides what a directory that cannot be used is called. Called by `run_job` as the first thing: no
restore point is chosen before the fence is claimed, so that the choice cannot move.
"""

import contextlib
import datetime
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote

from moorage.driver.refusals import (
    AdoptRequired,
    DirectoryConflict,
    StoreAccessRefused,
    StoreRefused,
)
from moorage.driver.reporter import Reporter
from moorage.driver.settings import JobSettings
from moorage.driver.types import RunOptions
from moorage_state.errors import (
    Fenced,
    MoorageError,
    StoreDenied,
    StoreUnavailable,
    UserError,
)
from moorage_state.snapshots import (
    AdoptionNeeded,
    CheckpointStore,
    Entry,
    LineageLog,
    LockHolder,
    LogWriter,
    NotOwner,
    Owner,
    acquire_lock,
    check_claim,
)
from moorage_state.stores import MemoryStore, open_store
from moorage_state.stores.addresses import opened

_log = logging.getLogger(__name__)
_WATCH_SECONDS = 10.0


class FenceWatch:
    """Reads the log's new entries every few seconds, until it is closed or the fence is lost.

    Args:
        storage: told why the store cannot be used, or that it can (empty).
    """

    def __init__(
        self, writer: LogWriter, storage: Callable[[str], object], seconds: float = _WATCH_SECONDS
    ) -> None:
        self._writer = writer
        self._storage = storage
        self._seconds = seconds
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="fence-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no more; does not wait for a look that is under way."""
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.wait(self._seconds):
            try:
                self._writer.watch()
            except Fenced:
                return  # who must know has been told by the writer
            except (StoreUnavailable, StoreDenied) as error:
                self._storage(str(error))
            except MoorageError as error:
                _log.warning("fence_not_watched: %s", error)
            except Exception:  # noqa: BLE001 - whatever it is, the next look may tell
                _log.exception("fence_not_watched")
            else:
                self._storage("")


@contextlib.contextmanager
def hold_lineage(
    settings: JobSettings, options: RunOptions, reporter: Reporter
) -> Iterator[tuple[LogWriter, CheckpointStore]]:
    """Hold the checkpoint directory's lock and fence, and see to it that a lost one is noticed.

    Raises:
        StoreRefused: the directory is missing, unreadable, held or owned by another.
        CorruptState: the lineage's log is damaged.
        StoreUnavailable: the store does not answer.
    """
    with _lock(settings, options, reporter):
        writer, store = _claim(settings, options)
        reporter.claimed(writer.lineage, writer.fence)
        watch = FenceWatch(writer, options.storage)
        try:
            yield writer, store
        finally:
            watch.close()


def _claim(settings: JobSettings, options: RunOptions) -> tuple[LogWriter, CheckpointStore]:
    orders = options.orders
    holder = orders.holder if orders else f"{socket.gethostname()}:{os.getpid()}"
    try:
        objects = open_store(settings.checkpoint_dir)
        owner = Owner(settings.cluster, settings.namespace, settings.name, settings.uid)
        adopt = orders.adopt_lineage if orders else ""
        writer = LogWriter.claim(objects, owner, holder, adopt=adopt, fenced=options.fenced)
    except UserError as error:
        raise _refusal(error) from error
    return writer, CheckpointStore(objects)


def _lock(
    settings: JobSettings, options: RunOptions, reporter: Reporter
) -> contextlib.AbstractContextManager[object]:
    """The lock on the checkpoint directory, which is made on a file system."""
    make_directory("state.checkpointDir", settings.checkpoint_dir)
    holder = LockHolder.current(settings.name, datetime.datetime.now(datetime.UTC))
    # An operator knows that the driver before is gone, or means to end it.
    insist = options.take_over or options.orders is not None
    try:
        store = open_store(settings.checkpoint_dir)
        return acquire_lock(store, holder, take_over=insist, watching=reporter.message)
    except UserError as error:
        raise _refusal(error) from error


def _refusal(error: UserError) -> StoreRefused:
    match error:
        case AdoptionNeeded():
            return AdoptRequired(*error.args)
        case NotOwner():
            return DirectoryConflict(*error.args)
        case StoreDenied():
            return StoreAccessRefused(*error.args)
        case _:
            return StoreRefused(*error.args)


def seen_lineage(settings: JobSettings) -> tuple[CheckpointStore, Sequence[Entry]]:
    """The lineage as it is, neither locked nor claimed; empty where a start would make it.

    Raises as `hold_lineage`, but of locks it knows nothing, nor of lineages to be adopted.
    """
    check_folder("state.checkpointDir", settings.checkpoint_dir)
    try:
        objects = opened(open_store, settings.checkpoint_dir)
        if objects is None:
            return CheckpointStore(MemoryStore("nothing")), ()
        entries = [one.entry for one in LineageLog.open(objects).view().records]
        owner = Owner(settings.cluster, settings.namespace, settings.name, settings.uid)
        # Whether it may be adopted is in the orders of a start.
        with contextlib.suppress(AdoptionNeeded):
            check_claim(entries, owner)
    except UserError as error:
        raise _refusal(error) from error
    return CheckpointStore(objects), entries


def check_folder(field: str, url: str) -> None:
    """Refuse a `file://` address of which more than the last part would have to be made.

    Raises StoreRefused: see `make_directory`.
    """
    if not url.startswith("file://"):
        return
    directory = Path(unquote(url.removeprefix("file://")))
    if not directory.parent.is_dir() and not _is_on_empty_volume(directory):
        raise _no_folder(field, url)


def make_directory(field: str, url: str) -> None:
    """Make the directory at a `file://` address; others are left alone.

    Args:
        field: which of the manifest's directories it is, for the error.

    Raises:
        StoreRefused: the folder it is in does not exist and is on no volume of its own, or the
            directory cannot be made there.
    """
    if not url.startswith("file://"):
        return
    directory = Path(unquote(url.removeprefix("file://")))
    # An unmounted volume must not pass for an empty store: only the last part of a path is made,
    # and all of it directly below a mount point, where the volume is there with nothing on it.
    try:
        directory.mkdir(exist_ok=True, parents=_is_on_empty_volume(directory))
    except FileNotFoundError as exc:
        raise _no_folder(field, url) from exc
    except OSError as exc:
        raise StoreRefused(
            f"cannot use the directory: {field}={url} error={exc.strerror}; name a directory that "
            f"you may write to"
        ) from exc


def _no_folder(field: str, url: str) -> StoreRefused:
    folder = Path(unquote(url.removeprefix("file://"))).parent
    return StoreRefused(
        f"the folder of the directory does not exist: {field}={url}; mount or make {folder}: where "
        f"no volume is mounted only the last part of the path is made for you, so that an "
        f"unmounted volume is not taken for an empty store"
    )


def _is_on_empty_volume(directory: Path) -> bool:
    """Whether the first folder above that exists is where a volume is mounted; `/` is none."""
    there = next(folder for folder in directory.parents if folder.exists())
    return there != Path("/") and os.path.ismount(there)
