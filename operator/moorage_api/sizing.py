"""How large pods are: their memory, divided among JVM, Python and RocksDB, and their disks.

One place for the numbers, since the builders of pods use them and the judges of manifests say when
a pod is too small for them. Memory is in whole MiB; pure arithmetic.
"""

from dataclasses import dataclass
from decimal import Decimal

from moorage_api.compute import DriverSpec, ExecutorSpec
from moorage_api.quantities import Quantity
from moorage_api.state import LocalVolume

_MIB = 1 << 20

# Spark refuses to start with less heap.
_LEAST_HEAP = 450
# Metaspace, threads, code and network buffers of a JVM.
_JVM_BESIDES = 384
# The driver's Python: the interpreter, boto3, Arrow, the plans of epochs.
_DRIVER_PYTHON = 256
# A Python worker: the interpreter, pandas and Arrow, and the batch it works on.
_WORKER_PYTHON = 256
_BESIDES_PERCENT = 40
# The driver's share besides the heap does not grow for ever: it holds plans and not data.
_DRIVER_BESIDES_MOST = 2048

# The parent of the state servers has no RocksDB.
_PARENT = 64
# A state server without RocksDB's memory: the interpreter, deltas and files on their way.
_SERVER = 256
_LEAST_CACHE = 64
_USUAL_CACHE = 256

# Of a volume on the node's own disk: without a bound one job fills it for all.
_EMPTY_DIR = Quantity("10Gi")


@dataclass(frozen=True, slots=True)
class JvmMemory:
    """A pod with a JVM and Python, in MiB; `heap + besides` is the pod's memory."""

    heap: int
    besides: int

    @property
    def total(self) -> int:
        """The pod's memory."""
        return self.heap + self.besides


@dataclass(frozen=True, slots=True)
class SidecarMemory:
    """The state servers of an executor."""

    limit: int  # of the container, in MiB
    databases: int  # MiB of it for the caches and write buffers of all servers together


def driver_memory(driver: DriverSpec) -> JvmMemory:
    """Divide the driver's memory."""
    total = _mib(driver.memory)
    share = min(total * _BESIDES_PERCENT // 100, _DRIVER_BESIDES_MOST)
    besides = max(share, _JVM_BESIDES + _DRIVER_PYTHON)
    return _divided(total, besides)


def executor_memory(executor: ExecutorSpec) -> JvmMemory:
    """Divide an executor's memory; a Python worker for each core lives beside the heap."""
    total = _mib(executor.memory)
    besides = max(total * _BESIDES_PERCENT // 100, _workers(executor))
    return _divided(total, besides)


def sidecar_memory(executor: ExecutorSpec) -> SidecarMemory:
    """Divide the sidecar's memory limit among its servers, one for each core.

    Without a limit (nor a request) it gets half a gigabyte for each server. Four fifths of what is
    left beside the processes themselves is RocksDB's: the rest is for what its bookkeeping misses.
    """
    cores, resources = executor.cores, executor.sidecar.resources
    given = resources.limits.get("memory") or resources.requests.get("memory")
    limit = _mib(given) if given else _PARENT + cores * (_SERVER + _USUAL_CACHE)
    spare = max(limit - _PARENT - cores * _SERVER, 0)
    return SidecarMemory(limit, max(spare * 4 // 5, cores * _LEAST_CACHE // 2))


def empty_dir_size(local: LocalVolume) -> Quantity:
    """How large an executor's EmptyDir may get: the kubelet evicts one that grows larger."""
    return local.size or _EMPTY_DIR


def executor_count(executor: ExecutorSpec, parallelism: int) -> int:
    """How many executors a parallelism needs, unless the spec says it."""
    return executor.instances or -(-parallelism // executor.cores)


def least_driver_memory() -> Quantity:
    """The least memory of a driver's pod."""
    return _quantity(_LEAST_HEAP + _JVM_BESIDES + _DRIVER_PYTHON)


def least_executor_memory(executor: ExecutorSpec) -> Quantity:
    """The least memory of an executor's pod with so many cores."""
    return _quantity(_LEAST_HEAP + _workers(executor))


def least_sidecar_memory(executor: ExecutorSpec) -> Quantity:
    """The least memory limit of the sidecar beside so many cores."""
    return _quantity(_PARENT + executor.cores * (_SERVER + _LEAST_CACHE))


def _divided(total: int, besides: int) -> JvmMemory:
    """Never less heap than Spark starts with: a pod that is too small is refused elsewhere."""
    heap = max(total - besides, _LEAST_HEAP)
    return JvmMemory(heap, max(total - heap, 0))


def _workers(executor: ExecutorSpec) -> int:
    return _JVM_BESIDES + executor.cores * _WORKER_PYTHON


def _mib(quantity: Quantity) -> int:
    return int(quantity.value / Decimal(_MIB))


def _quantity(mib: int) -> Quantity:
    return Quantity(f"{mib}Mi")
