"""Executors without Spark: a pool that a test changes by hand, and real servers for each."""

import contextlib
import shutil
import threading
from dataclasses import dataclass, field
from typing import Any

import pytest

from moorage.cluster.servers import ClusterServers, Patience, ServerPlace
from moorage.engine.placement import LiveExecutor
from moorage_state.rocks import RocksOptions
from moorage_state.server import ServerGroup
from moorage_state.server.slots import Slot
from moorage_state.state_backends import EmbeddedRocksDBStateBackend

MIB = 1 << 20
SMALL = EmbeddedRocksDBStateBackend(
    tuned=RocksOptions(
        block_cache_bytes=16 * MIB, write_buffers_bytes=16 * MIB, write_buffer_bytes=MIB
    )
)
TOKEN = "secret"  # noqa: S105
QUICK = Patience(
    all_executors=1.0, any_executor=2.0, revival=2.0, settle=0.0, between_moves=0.0, look=0.0
)


class Pod:
    """One server on a volume of its own, as an executor's pod has it."""

    def __init__(self, volume, port=0):
        self.volume = volume
        self.held = contextlib.ExitStack()
        self.slot = self.held.enter_context(Slot.take(volume))
        self.port = port
        self.start()

    def start(self):
        self.group = ServerGroup(
            1,
            self.slot.state,
            backend=SMALL,
            tcp_host="127.0.0.1",
            tcp_port=self.port,
            token=TOKEN,
            identity=self.slot.identity,
            socket_dir=self.slot.run,
        )
        self.port = int(self.group.tcp_addresses[0].rpartition(":")[2])

    @property
    def place(self):
        return ServerPlace("127.0.0.1", self.port, 1, str(self.volume))

    def end(self):
        self.group.close()
        self.held.close()


@dataclass
class Pool:
    """What Spark would say."""

    desired: int = 0
    pods: dict = field(default_factory=dict)
    going: set = field(default_factory=set)
    dismissed: list = field(default_factory=list)

    def live(self):
        return [LiveExecutor(name, "127.0.0.1") for name in sorted(self.pods)]

    def registered(self):
        return set(self.pods)

    def leaving(self):
        return frozenset(self.going)

    def dismiss(self):
        self.dismissed += sorted(self.going)
        self.going = set()

    def trouble(self):
        return "executor 9 was lost last: node gone"


class Cluster:
    """Executors that come and go, and the servers a job has on them."""

    def __init__(self, folder):
        self.folder = folder
        self.pool = Pool()
        self.told: list[str] = []
        self.pinned: list[dict] = []
        self.stop = threading.Event()
        self.made: list[Pod] = []
        self.servers = self.new_servers()

    def new_servers(self, **changes):
        arguments: dict[str, Any] = {
            "executors": self.pool,
            "find": lambda executor: self.pool.pods[executor.id].place,
            "token": TOKEN,
            "lineage": "lineage",
            "pin": lambda owners: self.pinned.append(dict(owners)),
            "tell": self.told.append,
            "stop": self.stop,
            "patience": QUICK,
        }
        return ClusterServers(**(arguments | changes))

    def add(self, name, *, port=0, wanted=True, volume=None):
        """An executor starts, with a volume of its own if it is not given that of another."""
        pod = Pod(volume or self.folder / f"{name}-{len(self.made)}", port)
        self.made.append(pod)
        self.pool.pods[name] = pod
        self.pool.desired += wanted
        return pod

    def lose(self, name, *, known=True, keep=False):
        """An executor is gone, and if it is not kept its volume; Spark may not have noticed."""
        pod = self.pool.pods[name]
        pod.end()
        if not keep:
            shutil.rmtree(pod.volume)
        if known:
            del self.pool.pods[name]
        return pod

    def close(self):
        self.servers.close()
        for pod in self.made:
            pod.end()


@pytest.fixture
def cluster(tmp_path):
    made = Cluster(tmp_path)
    yield made
    made.close()
