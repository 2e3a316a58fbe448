"""What a checkpoint costs a file sink after up to five years of a checkpoint a minute.

The list is laid as so many checkpoints of one file each leave it; then it is appended to for real,
on a store in memory that counts, from one compact entry to the next: the mean of these is what a
checkpoint costs. Records are written and put together from the first checkpoint on.
"""

from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.scale.curve import Curve
from moorage.sinks.metadata_log import FIRST_END, LOG_PREFIX, End, MetadataLog
from moorage.sinks.records import compaction, decode, encode, record_name, together
from moorage_state.stores import MemoryStore

_SWEEP_EVERY = 16
_YEARS = 5
_A_YEAR = 365 * 24 * 60
_QUICK = (20_000, 40_000)
_SIZES = (20_000, 100_000, _A_YEAR, _YEARS * _A_YEAR)
_FILE = "part-0f3c-f1r0-{:012d}-count-00000-3f0a9c2b11d4.parquet"


class _Counted:
    """A store that counts requests and bytes, a page of a listing as a request."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.requests = self.moved = 0

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._store, name)
        return self._counting(name, value) if callable(value) else value

    def _counting(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            answer = call(*args, **kwargs)
            self.requests += 1
            self.moved += sum(len(arg) for arg in args if isinstance(arg, bytes))
            if name == "list":
                answer = list(answer)
                self.requests += len(answer) // 1000
                # What S3 tells of a key.
                self.moved += sum(len(info.key) + 200 for info in answer)
            elif isinstance(answer, bytes):
                self.moved += len(answer)
            return answer

        return counted


def measure(*, quick: bool) -> list[Curve]:
    """Curves of requests and bytes of a checkpoint."""
    sizes = _QUICK if quick else _SIZES
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for size in sizes:
        list_requests, list_bytes = _list_costs(size)
        found.setdefault(("list of visible files", "requests"), []).append((size, list_requests))
        found.setdefault(("list of visible files", "bytes"), []).append((size, list_bytes))
    for size, cost in _record_costs([size for size in sizes if size <= _A_YEAR]):
        found.setdefault(("records", "bytes"), []).append((size, cost))
    return [
        # Records are written again as often as the logarithm of their number says.
        Curve("sinks", name, f"{unit} a checkpoint", "checkpoints", tuple(points), 0.15)
        for (name, unit), points in found.items()
    ]


def _list_costs(checkpoints: int) -> tuple[float, float]:
    """Requests and bytes of a checkpoint: the mean from one compact entry to the next."""
    name = f"list-{checkpoints}"
    store = _Counted(MemoryStore.named(name))
    try:
        end = _laid(store, checkpoints)
        log = MetadataLog(store)
        log.read()
        store.requests = store.moved = 0
        count = end.interval
        for number in range(checkpoints, checkpoints + count):
            log.add({_path(number): _line(number)}, _nothing, new=number > checkpoints)
            if not number % _SWEEP_EVERY:
                log.expire()
        return store.requests / count, store.moved / count
    finally:
        MemoryStore.forget(name)


def _laid(store: _Counted, checkpoints: int) -> End:
    """Write the list as so many checkpoints leave it, up to its last compact entry."""
    end, line = FIRST_END, len(_line(0)) + 1
    compact = 0
    for done in range(1, checkpoints + 1):
        full = end.is_full
        end = end.after(len("v1") + done * line)
        compact = done if full else compact
    # The one before says where it is and is not read.
    store.put_if_absent(f"{LOG_PREFIX}{end.compact - end.interval}.compact", b"v1")
    lines = (_line(number) for number in range(compact))
    store.put_if_absent(f"{LOG_PREFIX}{end.compact}.compact", "\n".join(["v1", *lines]).encode())
    return end


def _record_costs(sizes: list[int]) -> Iterator[tuple[int, float]]:
    """Bytes of records that are written and read in the mean, by the checkpoints that were."""
    files: dict[str, str] = {}
    moved, checkpoint = 0, 0
    for size in sizes:
        while checkpoint < size:
            checkpoint += 1
            data = encode(checkpoint, [_FILE.format(checkpoint)])
            files[record_name(checkpoint)] = data
            moved += len(data)
            names = together({name: len(text) for name, text in files.items()})
            if not names:
                continue
            held = decode(((name, files[name].encode()) for name in names), "")
            plan = compaction(names, held, range(1, checkpoint + 1))
            if plan is not None:
                moved += sum(len(files[name]) for name in names) + len(plan.data)
                files[plan.name] = plan.data
                for name in plan.obsolete:
                    del files[name]
        yield size, moved / size


def _path(number: int) -> str:
    return f"s3a://bucket/output/_data/{_FILE.format(number)}"


def _line(number: int) -> str:
    return (
        f'{{"path": "{_path(number)}", "size": 12345678, "isDir": false, "modificationTime": '
        f'1700000000000, "blockReplication": 1, "blockSize": 67108864, "action": "add"}}'
    )


def _nothing() -> None:
    """The fence of this list: there is one writer."""
