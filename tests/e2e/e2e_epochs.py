"""When a job committed epochs, whichever driver it was: how long it stood still.

Each driver says itself how many it committed, to a program in its own pod that asks four times a
second. A pod that goes takes its program with it; what that had said by then counts.
"""

import gc
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

from kubernetes.client.exceptions import ApiException
from kubernetes.stream import stream

from moorage_api.driver import ENDPOINT_PORT, METRICS_PATH, SCRAPE_FILE

from .e2e_cluster import Cluster, Namespace

__all__ = ["Epochs", "watched"]

_LOOK_SECONDS = 1.0
_PLACE = f"http://127.0.0.1:{ENDPOINT_PORT}{METRICS_PATH}"
_PROGRAM = """
import contextlib, sys, time, urllib.request
token, place = open(sys.argv[1]).read().strip(), sys.argv[2]
asked = urllib.request.Request(place, headers={"Authorization": "Bearer " + token})
before = None  # a driver that stood by may begin with more than none
while True:
    with contextlib.suppress(OSError):
        text = urllib.request.urlopen(asked, timeout=10).read().decode()
        for line in text.splitlines():
            if line.startswith("moorage_epochs_total{"):
                now = int(float(line.rpartition(" ")[2]))
                if before is not None and now > before:
                    print(time.time(), flush=True)
                before = now
    time.sleep(0.25)  # no endpoint tells of an epoch by itself: so exactly is it known when
"""


class Epochs:
    """When epochs were committed, by the clock of the nodes, in seconds; of each driver."""

    def __init__(self) -> None:
        self._heard: dict[str, list[float]] = {}

    def hear(self, driver: str, text: str) -> None:
        """What the program in a driver's pod has printed: whole lines."""
        self._heard.setdefault(driver, []).extend(float(line) for line in text.split())

    def by(self, driver: str) -> list[float]:
        """Those of one driver."""
        return sorted(self._heard.get(driver, []))

    def between(self, driver: str, follower: str) -> float:
        """From the last epoch of a driver to the first one of its follower, in seconds."""
        assert self.by(driver), f"{driver} said nothing"
        assert self.by(follower), f"{follower} said nothing"
        return self.by(follower)[0] - self.by(driver)[-1]


@contextmanager
def watched(namespace: Namespace, job: str = "ticker") -> Iterator[Epochs]:
    """Listen to all drivers of a job, those that come, too, for as long as the block lasts."""
    epochs, over = Epochs(), threading.Event()
    listeners: dict[str, threading.Thread] = {}

    def another() -> Cluster:
        """A client of its own: they are not for several threads."""
        return Cluster(namespace.cluster.kubeconfig, namespace.cluster.context)

    def listen(driver: str) -> None:
        with suppress(ApiException, OSError), closing(another()) as cluster:
            channel = stream(
                cluster.core.connect_get_namespaced_pod_exec,
                driver,
                namespace.name,
                container="driver",
                command=["python", "-c", _PROGRAM, SCRAPE_FILE, _PLACE],
                stdout=True,
                stderr=False,
                stdin=False,
                tty=False,
                _preload_content=False,
            )
            with closing(channel):
                while channel.is_open() and not over.is_set():
                    if channel.peek_stdout(timeout=1):
                        epochs.hear(driver, channel.read_stdout())

    def look() -> None:
        with closing(another()) as cluster:
            there = Namespace(cluster, namespace.name)
            while not over.wait(_LOOK_SECONDS):
                for pod in there.pods("driver", job):
                    name = pod["metadata"]["name"]
                    running = pod.get("status", {}).get("phase") == "Running"
                    if running and not (name in listeners and listeners[name].is_alive()):
                        listeners[name] = threading.Thread(target=listen, args=[name], daemon=True)
                        listeners[name].start()

    looker = threading.Thread(target=look, daemon=True)
    looker.start()
    try:
        yield epochs
    finally:
        over.set()
        looker.join(30)
        for listener in listeners.values():
            listener.join(30)
        # The client of `exec` leaves its sockets to the collector: here is a test that knows of it.
        gc.collect()
