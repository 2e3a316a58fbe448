"""Ranges without servers: one dict of all entries, epochs that commit by applying their frames."""

from bisect import bisect_right
from collections.abc import Callable, Sequence

import pytest

from moorage_state.database import Scan
from moorage_state.deltas import decode_frame, encode_frame
from moorage_state.keygroups import KeyGroupRange, range_of
from moorage_state.operator_state import (
    Mover,
    OperatorStateSchema,
    RangeOperatorStates,
    RawStates,
)
from moorage_state.operator_state.layout import state_prefix
from moorage_state.operator_state.ranges import entries_under

GROUPS = 12


class Access:
    """Reads entries as a range at a fixed version; pages are small, so that they are used."""

    def __init__(self, entries: dict[bytes, bytes]) -> None:
        self._entries = dict(entries)
        self._keys = sorted(self._entries)

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        return [self._entries.get(key) for key in keys]

    def scan_many(self, prefixes: list[bytes], limit_entries: int, limit_bytes: int) -> list[Scan]:
        assert limit_entries > 0
        assert limit_bytes > 0
        return [self.scan_from(prefix, b"", 3) for prefix in prefixes]

    def scan_from(self, prefix: bytes, after: bytes, limit: int) -> Scan:
        at = bisect_right(self._keys, after) if after else 0
        found = [key for key in self._keys[at:] if key.startswith(prefix)]
        mine = found[: min(limit, 3)]
        return Scan(mine, [self._entries[key] for key in mine], complete=len(mine) == len(found))

    def due_timers(self, *_: object) -> list[bytes]:
        raise AssertionError("operator state has no timers")

    def stage(self, frame: bytes) -> None:  # noqa: ARG002
        raise AssertionError("operator state is written through the store")


class Staged(Access):
    """Keeps what was staged."""

    def __init__(self, entries: dict[bytes, bytes]) -> None:
        super().__init__(entries)
        self.staged: list[bytes] = []

    def stage(self, frame: bytes) -> None:
        self.staged.append(frame)


class Frames:
    """Collects writes as the keyed store does: frame after frame."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self._begin()

    def _begin(self) -> None:
        self._ranges: list[tuple[bytes, bytes]] = []
        self._keys: list[bytes] = []
        self._values: list[bytes | None] = []

    def write(self, key: bytes, value: bytes | None) -> None:
        self._keys.append(key)
        self._values.append(value)

    def delete_range(self, start: bytes, end: bytes) -> None:
        self._ranges.append((start, end))

    def flush_key(self) -> None:
        if len(self._keys) >= 2:
            self.send()

    def send(self) -> None:
        if self._keys or self._ranges:
            self.frames.append(encode_frame(self._ranges, self._keys, self._values))
        self._begin()


class Subtask:
    """One subtask in one epoch."""

    def __init__(self, world: "World", number: int) -> None:
        groups = world.ranges[number]
        self.frames = Frames()
        access = Access(world.entries)

        def union(name: str) -> dict[int, list[bytes]]:
            prefixes = {one.start: state_prefix(one.start, name) for one in world.ranges}
            return {at: [raw for _, raw in entries_under(access, p)] for at, p in prefixes.items()}

        self.states = RangeOperatorStates(
            access, self.frames, groups.start, world.epoch + 1, world.schemas, union, world.changed
        )
        self.raw = RawStates(self.states, access, self.frames, groups)

    def finish(self) -> None:
        self.states.flush()
        self.raw.flush()
        self.frames.send()


class World:
    """The entries of an operator over all its ranges, epoch after epoch."""

    def __init__(self, parallelism: int = 2) -> None:
        self.entries: dict[bytes, bytes] = {}
        self.schemas: list[OperatorStateSchema] = []
        self.changed: list[OperatorStateSchema] = []
        self.epoch = 0
        self.frames: list[bytes] = []
        self._set(parallelism)

    def _set(self, parallelism: int) -> None:
        self.ranges: list[KeyGroupRange] = [
            range_of(i, parallelism, GROUPS) for i in range(parallelism)
        ]

    def run(self, work: Callable[[Subtask, int], object]) -> list[object]:
        """Run an epoch; what `work(subtask, number)` gave, by subtask."""
        subtasks = [Subtask(self, number) for number in range(len(self.ranges))]
        given = [work(subtask, number) for number, subtask in enumerate(subtasks)]
        for subtask in subtasks:
            subtask.finish()
        self.frames = [frame for subtask in subtasks for frame in subtask.frames.frames]
        self.schemas = subtasks[0].states.schemas
        self.apply(self.frames)
        return given

    def rescale(self, parallelism: int) -> None:
        """What a restore with another parallelism does: entries stay, subtasks are others."""
        before = [groups.start for groups in self.ranges]
        self._set(parallelism)
        if before == [groups.start for groups in self.ranges]:
            return
        access = Access(self.entries)
        mover = Mover(self.schemas, before, self.ranges, lambda _: access, self.epoch + 1)
        self.apply([frame for i in range(parallelism) for frame in mover.frames(i)])

    def apply(self, frames: Sequence[bytes]) -> None:
        """Commit an epoch."""
        for raw in frames:
            frame = decode_frame(raw)
            for start, end in frame.ranges:
                for key in [key for key in self.entries if start <= key < end]:
                    del self.entries[key]
            for key, value in zip(frame.keys, frame.values, strict=True):
                if value is None:
                    self.entries.pop(key, None)
                else:
                    self.entries[key] = value
        self.epoch += 1


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture(scope="session")
def new_access() -> Callable[[dict[bytes, bytes]], Staged]:
    return Staged


@pytest.fixture(scope="session")
def new_world() -> Callable[[int], World]:
    return World
