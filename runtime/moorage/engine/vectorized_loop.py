"""The loop over chunks for vectorized functions: one call for each batch of rows.

Decides what is read when, and that a key is written once. Called by the subtask.
"""

from collections.abc import Iterable, Iterator, Sequence
from operator import add
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from moorage.api.functions import ProcessContext
from moorage.api.join_functions import SIDES
from moorage.api.vectorized import (
    BatchContext,
    DueTimers,
    KeyedBatchFunction,
    MapEntries,
    Positions,
)
from moorage.engine.chunk_lists import ChunkLists
from moorage.engine.chunk_maps import ChunkMaps
from moorage.engine.chunk_timers import KINDS, ChunkTimers
from moorage.engine.columns import stream_column
from moorage.engine.outputs import SubtaskOutput, is_pair
from moorage.engine.range_access import BoundRange
from moorage.engine.rows import Chunk, chunk_of, counts_of, time_column
from moorage.engine.subtask_plan import SubtaskPlan
from moorage.engine.timers import Firing
from moorage_state.checks import StateTypeError
from moorage_state.columnar import ColumnCodec
from moorage_state.columnar.arrow import arrow_type
from moorage_state.errors import UserError
from moorage_state.keyed import KeyedStateStore
from moorage_state.keylayout import KEY_AT, state_id
from moorage_state.keys import (
    KeyCodec,
    decoded_numbers,
    encoded_namespaces,
    encoded_numbers,
)
from moorage_state.types import parse_type

_Raws = list[bytes | None]


class VectorizedLoop:
    """Runs a vectorized function in one attempt of one subtask; used once.

    Attributes:
        in_key: never; a failure is one of many keys.
        keys: how many keys had rows, or timers that fired without.

    Args:
        firing, timers: None for a function without timers.
    """

    def __init__(
        self,
        plan: SubtaskPlan,
        ctx: ProcessContext,
        store: KeyedStateStore,
        sending: SubtaskOutput,
        firing: Firing | None,
        timers: ChunkTimers | None = None,
    ) -> None:
        self._plan = plan
        self._function: KeyedBatchFunction = plan.function  # type: ignore[assignment]  # whoever makes a loop has looked
        self._watermark = ctx.timer_service().current_watermark()
        self._sending = sending
        self._codec = KeyCodec(plan.key_types)
        self._states = _ChunkStates(store)
        self._store = store
        self._firing, self._timers = firing, timers
        # See `KeyLoop`; with the backend batch there is nothing before the rows.
        self._rows_first = bool(plan.upstreams) or plan.batch
        self._last: tuple[list[bytes], pa.Array] | None = None
        self._any_due: bool | None = None
        self.in_key = False
        self.keys = 0

    def rows(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Process a batch that is not empty and holds no null key."""
        plan = self._plan
        chunk = chunk_of(batch, plan.key_columns, self._codec, self._states.last)
        if not chunk.runs_on:
            yield from self.end_key()
        self._begin(chunk.prefixes, runs_on=chunk.runs_on)
        self.keys += len(chunk.prefixes) - chunk.runs_on
        keys = self._keys_of(chunk)
        count = len(chunk.prefixes)
        if not self._rows_first:
            yield from self._fire(keys, range(int(chunk.runs_on), count))
        yield from self._send(self._call(keys, chunk))
        # The last key may have more rows: its timers wait for them.
        yield from self._fire(keys, range(count - 1), after_rows=True)
        self._end()
        self._last = chunk.prefixes[-1:], keys.slice(count - 1)

    def end_key(self) -> Iterator[pa.RecordBatch]:
        """Fire what the last key's rows left due, and write what was put for it."""
        if self._last is not None and self._timers is not None:
            prefixes, keys = self._last
            self._begin(prefixes, runs_on=True)
            yield from self._fire(keys, range(1))
            self._end()
        self._last = None
        self._states.finish()
        if self._timers is not None:
            self._timers.finish()

    def fire_without_rows(self, bound: BoundRange) -> Iterator[pa.RecordBatch]:
        """Fire timers of the keys that had no row in this epoch."""
        firing, timers = self._firing, self._timers
        if firing is None or timers is None:
            return
        for domain, page in firing.pages(bound):
            prefixes = list(page)
            timers.begin(prefixes, runs_on=False)
            mine = [
                prefix
                for i, prefix in enumerate(prefixes)
                if firing.is_first_of(timers.first_stored(i), domain, page[prefix])
            ]
            if not mine:
                continue
            self._begin(mine, runs_on=False)
            self.keys += len(mine)
            yield from self._fire(self._decoded(mine), range(len(mine)))
            self._end()
            self._states.finish()
            timers.finish()

    # -- one chunk -----------------------------------------------------------------------------

    def _begin(self, prefixes: list[bytes], *, runs_on: bool) -> None:
        self._states.begin(prefixes, runs_on=runs_on)
        if self._timers is not None:
            self._timers.begin(prefixes, runs_on=runs_on)

    def _end(self) -> None:
        self._states.end()
        if self._timers is not None:
            self._timers.end()
        self._store.flush_key()

    def _call(self, keys: pa.Array, chunk: Chunk) -> Any:
        rows = chunk.rows
        starts, times = np.array(chunk.starts, np.int64), time_column(rows)
        context = self._context(starts, rows.num_rows, times, self._watermark, counts_of(rows))
        return self._function.process_batch(keys, self._table(rows), context)

    def _table(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """What `process_batch` gets; of two streams a row of each, of which one is null."""
        plan = self._plan
        if not plan.streams:
            return rows.select(list(plan.columns))
        sides = [rows.column(stream_column(side)) for side in range(len(plan.streams))]
        return pa.RecordBatch.from_arrays(sides, names=list(SIDES))

    def _context(
        self,
        starts: NDArray[np.int64],
        rows: int,
        times: pa.Array | None,
        watermark: int,
        counts: NDArray[np.int64] | None = None,
    ) -> BatchContext:
        return BatchContext(
            self._states,
            starts,
            rows,
            times,
            watermark,
            self._sending.emit_table,
            self._timers,
            self._plan.now_ms,
            counts=counts,
        )

    def _fire(
        self, keys: pa.Array, span: range, *, after_rows: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Fire the timers of some keys that are due, also those that are set meanwhile."""
        firing, timers = self._firing, self._timers
        if firing is None or timers is None or not span:
            return
        # Only what a call has set can have become due since.
        if after_rows and not self._rows_first and not timers.changed:
            return
        if not timers.touched and not self._stored_due(firing):
            return
        fired = True
        while fired:
            fired = False
            for domain, limit in firing.limits(timers.earliest_set):
                due, had = timers.pop_due(span, domain, limit)
                for position in had:
                    firing.mark_done(self._states.prefix_of(position))
                if due is None:
                    continue
                fired = True
                firing.fired += len(due.times)
                yield from self._send(self._on_timers(keys, due, firing))

    def _stored_due(self, firing: Firing) -> bool:
        """Whether any key of the range has timers that were due when the epoch began."""
        if self._any_due is None:
            due = self._store.access.due_timers
            self._any_due = any(due(at, 1, b"", KINDS[domain]) for domain, at in firing.limits())
        return self._any_due

    def _on_timers(self, keys: pa.Array, due: DueTimers, firing: Firing) -> Iterator[Any]:
        """What the function gives for timers; it may set timers until the last was taken."""
        assert self._timers is not None  # noqa: S101 - for mypy: whoever calls has looked
        watermark = max(self._watermark, firing.watermark)
        context = self._context(np.zeros(0, np.int64), 0, None, watermark)
        with self._timers.firing(quiesced=self._plan.batch):
            yield from _batches(self._function.on_timers(keys, due, context))

    def _send(self, produced: Any) -> Iterator[pa.RecordBatch]:
        # A generator puts states while it is asked for its tables.
        for made in _batches(produced):
            yield from self._sending.send(made)
        yield from self._sending.flush()

    # -- keys ----------------------------------------------------------------------------------

    def _keys_of(self, chunk: Chunk) -> pa.Array:
        firsts = pa.array(np.array(chunk.starts, np.int64))
        return self._joined(
            [chunk.rows.column(name).take(firsts) for name in self._plan.key_columns]
        )

    def _decoded(self, prefixes: list[bytes]) -> pa.Array:
        """Keys of which no row came, from what their state begins with."""
        keys = [self._codec.decode(prefix[KEY_AT:]) for prefix in prefixes]
        kinds = [arrow_type(parse_type(ddl)) for ddl in self._plan.key_types]
        columns = zip(*keys, strict=True)
        return self._joined([pa.array(c, kind) for c, kind in zip(columns, kinds, strict=True)])

    def _joined(self, columns: list[pa.Array]) -> pa.Array:
        if len(columns) == 1:
            return columns[0]
        return pa.StructArray.from_arrays(columns, names=list(self._plan.key_columns))


class _ChunkStates:
    """The states of a chunk's keys, by column.

    Attributes:
        last: the prefix of the chunk's last key, whose rows may run on; empty before the first.
    """

    def __init__(self, store: KeyedStateStore) -> None:
        self._store = store
        self._codecs: dict[tuple[int, str], tuple[bytes, ColumnCodec]] = {}
        self._lists = ChunkLists(store)
        self._maps = ChunkMaps(store)
        self._prefixes: list[bytes] = []
        self._runs_on = False
        self._raws: dict[bytes, _Raws] = {}
        self._heads: dict[bytes, list[bytes]] = {}
        # By state the positions that were put; None: all.
        self._put: dict[bytes, set[int] | None] = {}
        self._waiting: dict[bytes, bytes | None] = {}
        self._cells: dict[bytes, bytes | None] = {}
        self.last = b""

    def begin(self, prefixes: list[bytes], *, runs_on: bool) -> None:
        """Take the keys of a chunk; what waited for a key that does not run on is written."""
        if not runs_on:
            self.finish()
        self._prefixes, self._runs_on = prefixes, runs_on
        self._raws, self._put, self._heads = {}, {}, {}
        self._store.begin_chunk(prefixes)

    def prefix_of(self, position: int) -> bytes:
        """What the stored state of a key of the chunk begins with."""
        return self._prefixes[position]

    def get(self, state: Any, of: "Positions | None" = None) -> pa.Array:
        """See `BatchContext.get_values`."""
        sid, codec = self._codec_of(state)
        raws, default = self._stored(sid), getattr(state, "default", None)
        if of is not None:
            raws = [raws[position] for position in of]
        return codec.decode(
            raws if default is None else [default if raw is None else raw for raw in raws]
        )

    def put(self, state: Any, column: Any, of: "Positions | None" = None) -> None:
        """See `BatchContext.put_values`."""
        sid, codec = self._codec_of(state)
        count = len(self._prefixes if of is None else of)
        if len(column) != count:
            raise UserError(
                f"a state is put for all keys of a chunk at once: values={len(column)} "
                f"keys={count}; give one for each key, null to clear"
            )
        if of is None:
            self._raws[sid], self._put[sid] = codec.encode(column), None
            return
        raws, put = self._stored(sid), self._put.setdefault(sid, set())
        for position, raw in zip(of, codec.encode(column), strict=True):
            raws[position] = raw
        if put is not None:
            put.update(map(int, of))

    def get_at(self, state: Any, of: Positions, namespaces: Sequence[Positions]) -> pa.Array:
        """See `BatchContext.get_namespaced_values`."""
        sid, codec = self._codec_of(state, "value")
        cells = self._cells_of(sid, of, namespaces)
        raws = self._store.access.get_many(cells) if cells else []
        if self._cells:
            put = self._cells
            raws = [put.get(cell, raw) for cell, raw in zip(cells, raws, strict=True)]
        return codec.decode(raws)

    def put_at(
        self, state: Any, of: Positions, namespaces: Sequence[Positions], column: Any
    ) -> None:
        """See `BatchContext.put_namespaced_values`."""
        sid, codec = self._codec_of(state, "value")
        cells = self._cells_of(sid, of, namespaces)
        if len(column) != len(cells):
            raise UserError(
                f"a state is put for as many namespaces as there are values: values={len(column)} "
                f"namespaces={len(cells)}; give one for each, null to clear"
            )
        self._cells.update(zip(cells, codec.encode(column), strict=True))

    def lists_at(self, state: Any, of: Positions, namespaces: Sequence[Positions]) -> pa.ListArray:
        """See `BatchContext.get_namespaced_lists`."""
        sid, codec = self._codec_of(state, "list")
        return self._lists.get(self._cells_of(sid, of, namespaces), codec)

    def append_at(
        self, state: Any, of: Positions, namespaces: Sequence[Positions], column: Any
    ) -> None:
        """See `BatchContext.append_namespaced_values`."""
        sid, codec = self._codec_of(state, "list")
        cells = self._cells_of(sid, of, namespaces)
        if len(column) != len(cells):
            raise UserError(
                f"a list is named for each value that is added: values={len(column)} "
                f"namespaces={len(cells)}; give one for each"
            )
        if column.null_count:
            raise StateTypeError(
                f"no element of a list is null: nulls={column.null_count} of={len(column)}; leave "
                f"them out"
            )
        raws: Any = codec.encode(column)
        self._lists.append(cells, raws)

    def clear_lists_at(self, state: Any, of: Positions, namespaces: Sequence[Positions]) -> None:
        """See `BatchContext.clear_namespaced_lists`."""
        sid, _ = self._codec_of(state, "list")
        self._lists.clear(self._cells_of(sid, of, namespaces))

    def map_at(self, state: Any, of: Positions, map_keys: Positions) -> pa.Array:
        """See `BatchContext.get_map_values`."""
        sid, codec = self._codec_of(state, "map")
        _require_as_many(of, map_keys)
        return codec.decode(self._maps.get(self._heads_of(sid, of), encoded_numbers(map_keys)))

    def put_map_at(self, state: Any, of: Positions, map_keys: Positions, column: Any) -> None:
        """See `BatchContext.put_map_values`."""
        sid, codec = self._codec_of(state, "map")
        _require_as_many(of, map_keys)
        cells = self._heads_of(sid, of)
        if len(column) != len(cells):
            raise UserError(
                f"an entry is put for each value: values={len(column)} entries={len(cells)}; give "
                f"one for each, null to remove"
            )
        self._maps.put(cells, encoded_numbers(map_keys), codec.encode(column))

    def map_entries(self, state: Any, of: Positions) -> MapEntries:
        """See `BatchContext.get_map_entries`."""
        sid, codec = self._codec_of(state, "map")
        counts, map_keys, raws = self._maps.entries(self._heads_of(sid, of))
        index = np.repeat(np.asarray(of, np.int64), counts)
        return MapEntries(index, decoded_numbers(map_keys), codec.decode(raws))

    def _heads_of(self, sid: bytes, of: Positions) -> list[bytes]:
        if (heads := self._heads.get(sid)) is None:
            heads = self._heads[sid] = [prefix + sid for prefix in self._prefixes]
        return list(map(heads.__getitem__, np.asarray(of, np.int64).tolist()))

    def _cells_of(self, sid: bytes, of: Positions, namespaces: Sequence[Positions]) -> list[bytes]:
        _require_as_many(of, *namespaces)
        return list(map(add, self._heads_of(sid, of), encoded_namespaces(namespaces)))

    def end(self) -> None:
        """Write what was put for all keys but the last, which waits."""
        prefixes = self._prefixes
        self._lists.end(prefixes[-1])
        self._maps.end(prefixes[-1])
        if self._cells:
            mine, running = self._cells, prefixes[-1]
            waiting = {cell: raw for cell, raw in mine.items() if cell.startswith(running)}
            for cell in waiting:
                del mine[cell]
            self._store.write_many(list(mine), list(mine.values()))
            self._cells = waiting
        # A key whose rows ran on into this batch is written now, unless it is also the last.
        if self._runs_on and len(prefixes) > 1:
            again = {sid for sid, put in self._put.items() if put is None or 0 in put}
            self._write_waiting(prefixes[0], except_for=again)
        last = len(prefixes) - 1
        for sid, put in sorted(self._put.items(), key=lambda item: item[0]):
            raws = self._raws[sid]
            which = range(last) if put is None else sorted(put - {last})
            self._store.write_many([prefixes[at] + sid for at in which], [raws[at] for at in which])
            # The rows of the last key may run on into the next batch: what was put for it waits.
            if put is None or last in put:
                self._waiting[sid] = raws[-1]
        self.last = prefixes[-1]

    def finish(self) -> None:
        """Write what waits for the last key."""
        self._write_waiting(self.last, except_for=set())
        self._lists.end()
        self._maps.end()
        self._store.write_many(list(self._cells), list(self._cells.values()))
        self._cells = {}

    def _write_waiting(self, prefix: bytes, *, except_for: set[bytes]) -> None:
        for sid, raw in sorted(self._waiting.items(), key=lambda item: item[0]):
            if sid not in except_for:
                self._store.write(prefix + sid, raw)
        self._waiting = {}

    def _stored(self, sid: bytes) -> _Raws:
        if sid not in self._raws:
            raws = self._store.access.get_many([prefix + sid for prefix in self._prefixes])
            if self._runs_on and sid in self._waiting:
                raws[0] = self._waiting[sid]
            self._raws[sid] = raws
        return self._raws[sid]

    def _codec_of(self, state: Any, kind: str = "") -> tuple[bytes, ColumnCodec]:
        """The id and codec of a state: a value, a "map", or in namespaces a "value" or "list"."""
        found = self._codecs.get((id(state), kind))
        if found is None:
            store = self._store
            if kind == "map":
                plain = store.plain_map(state)
            elif kind:
                plain = store.plain_namespaced(state, lists=kind == "list")
            else:
                plain = store.plain_value(state)
            if plain is None:
                raise _unfit(state, kind)
            schema, declared = plain
            codec = ColumnCodec(schema.type, schema.earlier, schema.name, declared)
            found = self._codecs[id(state), kind] = state_id(schema.name), codec
        return found


def _require_as_many(of: Positions, *columns: Positions) -> None:
    """Refuse positions of keys beside which other numbers stand, if these are more or fewer."""
    counts = [len(column) for column in columns]
    if any(count != len(of) for count in counts):
        raise UserError(
            f"each position of a key stands beside one number of each other column: "
            f"key_index={len(of)} others={counts}; give as many of each"
        )


def _unfit(state: Any, kind: str) -> UserError:
    got = f"got={type(state).__name__}"
    if kind == "map":
        return UserError(
            f"get_map_values takes what get_map_state gave for a map whose keys are long numbers, "
            f"without a time to live: {got}"
        )
    if kind == "list":
        return UserError(
            f"get_namespaced_lists takes what get_namespaced_state gave for a list, without a time "
            f"to live: {got}"
        )
    if kind:
        return UserError(
            f"get_namespaced_values takes what get_namespaced_state gave for one value, without a "
            f"time to live: {got}"
        )
    return UserError(
        f"a vectorized function reads and writes its value states without a time to live: {got}; "
        f"declare a ValueStateDescriptor in open"
    )


def _batches(produced: Any) -> Iterable[Any]:
    """What a function gave, one table or batch after the other."""
    if produced is None:
        return ()
    single = isinstance(produced, (pa.Table, pa.RecordBatch)) or is_pair(produced)
    if single or not hasattr(produced, "__iter__"):
        return (produced,)
    made: Iterable[Any] = produced
    return made
