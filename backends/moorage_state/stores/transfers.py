"""Many transfers at once: a bounded number in flight, and one failure ends them all."""

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from typing import TypeVar

from moorage_state.progress import carried

T = TypeVar("T")


def in_parallel(tasks: Iterable[Callable[[], T]], threads: int, name: str = "transfer") -> list[T]:
    """Run `tasks` on `threads` threads of their own, none of which is left when this returns.

    See `run_windowed`, of which `threads` is the window.
    """
    with ThreadPoolExecutor(threads, name) as pool:
        return run_windowed(tasks, pool, threads)


def run_windowed(
    tasks: Iterable[Callable[[], T]],
    pool: Executor,
    window: int,
    stop: threading.Event | None = None,
) -> list[T]:
    """Run `tasks` on `pool`, at most `window` at a time, and return their results in order.

    After the first error `stop` is set, no further task starts, and the error is raised once those
    that run have ended: nothing goes on behind the caller's back. A task must not wait for tasks of
    the same pool.
    """
    stop = stop or threading.Event()
    results: dict[int, T] = {}
    running: dict[Future[T], int] = {}
    # Consumed as places become free: an endless or costly one is never held in memory as a whole,
    # and users of one pool take turns.
    source = enumerate(tasks)
    try:
        while _fill(source, pool, running, window):
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                results[running.pop(future)] = future.result()
    except BaseException:
        stop.set()
        for future in running:
            future.cancel()
        raise
    finally:
        wait(running)
    return [results[index] for index in sorted(results)]


def _fill(
    source: Iterator[tuple[int, Callable[[], T]]],
    pool: Executor,
    running: dict[Future[T], int],
    window: int,
) -> bool:
    """Start tasks until the window is full or none is left; False when nothing runs any more."""
    while len(running) < window:
        try:
            index, task = next(source)
        except StopIteration:
            break
        running[pool.submit(carried(task))] = index
    return bool(running)
