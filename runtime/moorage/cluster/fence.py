"""Finding out that the fence was lost although nothing is written at the moment.

A driver that does nothing appends nothing, and would not notice that another took over. This looks
at the log now and then; it is also how an idle job learns that its store is away.
"""

import logging
import threading
from collections.abc import Callable

from moorage_state.errors import Fenced, MoorageError, StoreDenied, StoreUnavailable
from moorage_state.snapshots import LogWriter

__all__ = ["FenceWatch"]

_log = logging.getLogger(__name__)

SECONDS = 10.0


class FenceWatch:
    """Reads the log's new entries every few seconds, until it is closed or the fence is lost.

    Args:
        storage: told why the store cannot be used, or that it can (empty).
    """

    def __init__(
        self, writer: LogWriter, storage: Callable[[str], None], seconds: float = SECONDS
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
