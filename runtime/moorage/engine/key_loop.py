"""The loop over keys: rows and timers of one key after the other.

Decides the order of things for each key: due timers, its rows, timers that have become due. Called
by the subtask with chunks of rows.
"""

# ruff: noqa: SLF001 - a context's underscored side is the engine's, the rest is the user's

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from moorage.api.functions import ProcessContext
from moorage.engine.outputs import FLUSH_ROWS, SubtaskOutput
from moorage.engine.range_access import BoundRange
from moorage.engine.rows import Chunk, by_key, chunk_of, reader_of, times_of
from moorage.engine.subtask_plan import SubtaskPlan
from moorage.engine.timers import Firing
from moorage_state.keyed import KeyedStateStore
from moorage_state.keylayout import KEY_AT
from moorage_state.keys import KeyCodec


class KeyLoop:
    """Runs the function of one attempt of one subtask; used once.

    Attributes:
        in_key: whether user code may be running for `ctx.key`.
        keys: how many keys had rows or timers that fired.

    Args:
        firing: None for a function without timers.
    """

    def __init__(
        self,
        plan: SubtaskPlan,
        ctx: ProcessContext,
        store: KeyedStateStore,
        sending: SubtaskOutput,
        firing: Firing | None,
    ) -> None:
        self._plan = plan
        self._process = plan.function.process
        self._ctx = ctx
        self._store = store
        self._sending = sending
        self._out = sending.buffer
        self._firing = firing
        self._codec = KeyCodec(plan.key_types)
        self._reader = reader_of(plan)
        self.in_key = False
        self.keys = 0

    def rows(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Process a batch that is not empty and holds no null key."""
        current = self._store.prefix if self.in_key else b""
        chunk = chunk_of(batch, self._plan.key_columns, self._codec, current)
        if not chunk.runs_on:
            yield from self.end_key()
        self._store.begin_chunk(chunk.prefixes)
        times = times_of(chunk.rows)
        rows = self._reader.rows(chunk.rows)
        if times is None and self._firing is None:
            yield from self._plain_keys(chunk, rows)
        else:
            yield from self._keys_in_time(chunk, rows, times or [None] * len(rows))

    def _plain_keys(self, chunk: Chunk, rows: list[Any]) -> Iterator[pa.RecordBatch]:
        """Keys of a function without timers, whose rows have no time: the usual case."""
        process, ctx, switch_to = self._process, self._ctx, self._store.switch_to
        made = self._out.rows
        append, as_tuple = self._out.append, self._out.as_tuple
        ctx._timestamp = None
        self.in_key = True
        self.keys += len(chunk.keys) - chunk.runs_on
        running = 0 if chunk.runs_on else -1
        # Run for every key: it calls nothing but the function and the store.
        for i, (key, mine) in enumerate(zip(chunk.keys, by_key(rows, chunk.starts), strict=True)):
            if i != running:
                switch_to(i)
                ctx.key = key
            for row in mine:
                produced = process(row, ctx)
                if produced is not None:
                    try:
                        for out in produced:
                            append(out if type(out) is tuple else as_tuple(out))
                            # Not once a key or a row: each of them may give very many.
                            if len(made) >= FLUSH_ROWS:
                                yield from self._sending.flush()
                    except TypeError:
                        self._out.require_rows(produced)
                        raise
                # Rows of side outputs, which come past `produced`.
                if len(made) >= FLUSH_ROWS:
                    yield from self._sending.flush()

    def _keys_in_time(
        self, chunk: Chunk, rows: list[Any], times: list[int | None]
    ) -> Iterator[pa.RecordBatch]:
        """Keys of a function that has timers, or whose rows have times."""
        store, ctx, firing = self._store, self._ctx, self._firing
        # The watermark of an epoch lies before the rows that inputs bring in it, but behind what an
        # operator sent when its own timers fired at that watermark: after another operator rows
        # come first.
        rows_first = bool(self._plan.upstreams)
        delay = self._plan.timer_delay_ms
        spans = zip(
            chunk.keys, by_key(rows, chunk.starts), by_key(times, chunk.starts), strict=True
        )
        for i, (key, mine, when) in enumerate(spans):
            if i > 0 or not chunk.runs_on:
                if firing is not None and i > 0 and (rows_first or firing.any_due()):
                    yield from self._fire(firing)
                store.switch_to(i)
                ctx.key = key
                self.in_key = True
                self.keys += 1
                if firing is not None:
                    firing.begin_key()
                    if not rows_first and firing.any_due():
                        yield from self._fire(firing)
            # Where one clock alone decides, time goes on within a key as its rows do. Where there
            # are several, a key's rows say nothing of the slower one.
            if firing is None or delay is None:
                yield from self._timed_rows(mine, when)
            else:
                yield from self._rows_and_timers(firing, mine, when, delay + 1)

    def _timed_rows(
        self, rows: Sequence[Any], times: Sequence[int | None]
    ) -> Iterator[pa.RecordBatch]:
        process, extend, ctx = self._process, self._out.extend, self._ctx
        made = self._out.rows
        for row, time_ms in zip(rows, times, strict=True):
            ctx._timestamp = time_ms
            produced = process(row, ctx)
            left = None if produced is None else extend(produced)
            if len(made) >= FLUSH_ROWS:
                yield from self._sending.flush_with(left)

    def _rows_and_timers(
        self, firing: Firing, rows: Sequence[Any], times: Sequence[int | None], behind: int
    ) -> Iterator[pa.RecordBatch]:
        """Rows of a key, with the timers that come before each."""
        process, extend, ctx = self._process, self._out.extend, self._ctx
        made, service = self._out.rows, ctx.timer_service()
        for row, time_ms in zip(rows, times, strict=True):
            if time_ms is not None:
                if (reached := time_ms - behind) > service._watermark:
                    service._watermark = reached
                while not firing.up_to(reached):
                    yield from self._sending.flush()
            ctx._timestamp = time_ms
            produced = process(row, ctx)
            left = None if produced is None else extend(produced)
            if len(made) >= FLUSH_ROWS:
                yield from self._sending.flush_with(left)

    def end_key(self) -> Iterator[pa.RecordBatch]:
        """Fire what the current key's rows left due, and write what the key changed."""
        firing = self._firing
        if firing is not None and self.in_key:
            yield from self._fire(firing)
        self._store.flush_key()
        self.in_key = False

    def _fire(self, firing: Firing) -> Iterator[pa.RecordBatch]:
        """Fire what is due for the current key, which has rows."""
        if firing.any_due():
            while not firing.go_on():
                yield from self._sending.flush()
        firing.key_done(self._store.prefix)

    def fire_without_rows(self, bound: BoundRange) -> Iterator[pa.RecordBatch]:
        """Fire timers of the keys that had no row in this epoch; no key is current."""
        firing = self._firing
        if firing is None:
            return
        for domain, page in firing.pages(bound):
            self._store.begin_chunk(list(page))
            for i, (prefix, time_ms) in enumerate(page.items()):
                self._store.switch_to(i)
                firing.begin_key()
                if not firing.is_first(domain, time_ms):
                    continue
                key = self._codec.decode(prefix[KEY_AT:])
                self._ctx.key = key[0] if len(key) == 1 else key
                self.in_key = True
                self.keys += 1
                if firing.any_due():
                    while not firing.go_on():
                        yield from self._sending.flush()
            self._store.flush_key()
            self.in_key = False
