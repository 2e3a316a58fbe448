"""The loop over chunks for vectorized functions: one call for each batch of rows.

Decides what is read when, and that a key is written once. Called by the subtask.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from moorage.api.functions import ProcessContext
from moorage.api.vectorized import BatchContext, KeyedBatchFunction
from moorage.engine.outputs import SubtaskOutput, is_pair
from moorage.engine.range_access import BoundRange
from moorage.engine.rows import Chunk, chunk_of, time_column
from moorage.engine.subtask_plan import SubtaskPlan
from moorage.engine.timers import Firing
from moorage_state.columnar import ColumnCodec
from moorage_state.errors import UserError
from moorage_state.keyed import KeyedStateStore
from moorage_state.keylayout import state_id
from moorage_state.keys import KeyCodec

_Raws = list[bytes | None]


class VectorizedLoop:
    """Runs a vectorized function in one attempt of one subtask; used once.

    Attributes:
        in_key: never; a failure is one of many keys.
        keys: how many keys had rows.
    """

    def __init__(
        self,
        plan: SubtaskPlan,
        ctx: ProcessContext,
        store: KeyedStateStore,
        sending: SubtaskOutput,
        firing: Firing | None,
    ) -> None:
        if firing is not None:
            raise UserError(
                f"a vectorized function has no timers: operator={plan.uid} "
                f"function={type(plan.function).__name__}; leave out on_timer, or write a "
                f"KeyedProcessFunction"
            )
        self._plan = plan
        self._function: KeyedBatchFunction = plan.function  # type: ignore[assignment]  # whoever makes a loop has looked
        self._watermark = ctx.timer_service().current_watermark()
        self._sending = sending
        self._codec = KeyCodec(plan.key_types)
        self._states = _ChunkStates(store)
        self._store = store
        self.in_key = False
        self.keys = 0

    def rows(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Process a batch that is not empty and holds no null key."""
        plan = self._plan
        chunk = chunk_of(batch, plan.key_columns, self._codec, self._states.last)
        self._states.begin(chunk)
        self.keys += len(chunk.prefixes) - chunk.runs_on
        # A generator puts states while it is asked for its tables.
        for made in _batches(self._call(chunk)):
            yield from self._sending.send(made)
        yield from self._sending.flush()
        self._states.end()
        self._store.flush_key()

    def _call(self, chunk: Chunk) -> Any:
        starts = np.array(chunk.starts, np.int64)
        rows = chunk.rows.num_rows
        context = BatchContext(
            self._states,
            starts,
            rows,
            time_column(chunk.rows),
            self._watermark,
            self._sending.emit_table,
        )
        firsts = pa.array(starts)
        columns = [chunk.rows.column(name).take(firsts) for name in self._plan.key_columns]
        keys = columns[0]
        if len(columns) > 1:
            keys = pa.StructArray.from_arrays(columns, names=list(self._plan.key_columns))
        table = chunk.rows.select(list(self._plan.columns))
        return self._function.process_batch(keys, table, context)

    def end_key(self) -> Iterator[pa.RecordBatch]:
        """Write what was put for the last key of all."""
        self._states.finish()
        return iter(())

    def fire_without_rows(self, bound: BoundRange) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """Nothing fires."""
        return iter(())


class _ChunkStates:
    """The value states of a chunk's keys, by column.

    Attributes:
        last: the prefix of the chunk's last key, whose rows may run on; empty before the first.
    """

    def __init__(self, store: KeyedStateStore) -> None:
        self._store = store
        self._codecs: dict[int, tuple[bytes, ColumnCodec]] = {}
        self._prefixes: list[bytes] = []
        self._runs_on = False
        self._raws: dict[bytes, _Raws] = {}
        self._put: set[bytes] = set()
        self._waiting: dict[bytes, bytes | None] = {}
        self.last = b""

    def begin(self, chunk: Chunk) -> None:
        """Take the keys of a chunk; what waited for a key that does not run on is written."""
        if not chunk.runs_on:
            self.finish()
        self._prefixes, self._runs_on = chunk.prefixes, chunk.runs_on
        self._raws, self._put = {}, set()
        self._store.begin_chunk(chunk.prefixes)

    def get(self, state: Any) -> pa.Array:
        """See `BatchContext.get_values`."""
        sid, codec = self._codec_of(state)
        raws, default = self._stored(sid), getattr(state, "default", None)
        return codec.decode(
            raws if default is None else [default if raw is None else raw for raw in raws]
        )

    def put(self, state: Any, column: Any) -> None:
        """See `BatchContext.put_values`."""
        sid, codec = self._codec_of(state)
        if len(column) != len(self._prefixes):
            raise UserError(
                f"a state is put for all keys of a chunk at once: values={len(column)} "
                f"keys={len(self._prefixes)}; give one for each key, null to clear"
            )
        self._raws[sid] = codec.encode(column)
        self._put.add(sid)

    def end(self) -> None:
        """Write what was put for all keys but the last, which waits."""
        prefixes = self._prefixes
        # A key whose rows ran on into this batch is written now, unless it is also the last.
        if self._runs_on and len(prefixes) > 1:
            self._write_waiting(prefixes[0], except_for=self._put)
        for sid in sorted(self._put):
            raws = self._raws[sid]
            self._store.write_many([prefix + sid for prefix in prefixes[:-1]], raws[:-1])
            # The rows of the last key may run on into the next batch: what was put for it waits.
            self._waiting[sid] = raws[-1]
        self.last = prefixes[-1]

    def finish(self) -> None:
        """Write what waits for the last key."""
        self._write_waiting(self.last, except_for=set())

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

    def _codec_of(self, state: Any) -> tuple[bytes, ColumnCodec]:
        found = self._codecs.get(id(state))
        if found is None:
            plain = self._store.plain_value(state)
            if plain is None:
                raise UserError(
                    f"a vectorized function reads and writes its value states without a time to "
                    f"live: got={type(state).__name__}; declare a ValueStateDescriptor in open"
                )
            schema, declared = plain
            codec = ColumnCodec(schema.type, schema.earlier, schema.name, declared)
            found = self._codecs[id(state)] = state_id(schema.name), codec
        return found


def _batches(produced: Any) -> Iterable[Any]:
    """What a function gave, one table or batch after the other."""
    if produced is None:
        return ()
    if isinstance(produced, (pa.Table, pa.RecordBatch)) or is_pair(produced):
        return (produced,)
    made: Iterable[Any] = produced
    return made
