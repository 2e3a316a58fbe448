"""Work beside the epochs: threads that hand their results over and touch nothing else.

Called by the checkpointer, which takes the results under the epoch lock.
"""

import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

__all__ = ["Background"]


class Background:
    """Threads and the results that wait to be taken.

    Args:
        clock: seconds on a clock that only goes forward.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._answers: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._threads: list[tuple[threading.Thread, bool]] = []

    def run(
        self,
        name: str,
        action: Callable[[], Any],
        then: Callable[[Any], None],
        *,
        awaited: bool = True,
        writes: bool = False,
    ) -> None:
        """Run `action` in a thread; `take` gives its result, or the error it raised, to `then`.

        Args:
            awaited: `join` waits for it.
            writes: it makes things exist, so that `join` waits for its end, which the store's own
                time limits bring.
        """

        def work() -> None:
            try:
                result: Any = action()
            except BaseException as error:  # noqa: BLE001 - carried to the thread that takes it
                result = error
            self._answers.put(partial(then, result))

        self._threads = [known for known in self._threads if known[0].is_alive()]
        thread = threading.Thread(target=work, name=name, daemon=True)
        if awaited:
            self._threads.append((thread, writes))
        thread.start()

    def take(self, timeout: float = 0.0) -> None:
        """Hand over all results there are, after waiting up to `timeout` seconds for the first."""
        while True:
            try:
                answer = (
                    self._answers.get(timeout=timeout) if timeout else self._answers.get_nowait()
                )
            except queue.Empty:
                return
            timeout = 0.0
            answer()

    def join(self, seconds: float) -> None:
        """Wait for the threads that make things exist, and for the others at most so long.

        What is left goes on to its end, and nobody takes its result any more. `take` has the last
        results of the others.
        """
        deadline = self._clock() + seconds
        for thread, writes in self._threads:
            thread.join(None if writes else max(0.0, deadline - self._clock()))
