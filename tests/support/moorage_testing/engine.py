"""The epoch engine without a driver: a job's graph, real state servers, batches given by hand."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from moorage import DataStream, SinkRestore, StageId, StreamEnvironment
from moorage.api.graph import InputNode, JobGraph
from moorage.driver.local import LocalServers
from moorage.driver.lookups import LookupSource
from moorage.engine.acks import EpochOutcome
from moorage.engine.epoch import EpochRunner, RunIdentity
from moorage.engine.event_time import Watermarks
from moorage.engine.fleet import RangeFleet
from moorage.engine.kv_states import KvStateLocationRegistry
from moorage.engine.placement import LocalPlacement, Placement
from moorage.engine.plan import EpochPlanner, tagged_union
from moorage_state.codecs import decoder
from moorage_state.keygroups import SPARK_XXHASH64, range_of
from moorage_state.keylayout import KEYED_STATE, key_prefix, state_id
from moorage_state.keys import KeyCodec
from moorage_state.server.client import StateClient
from moorage_state.server.group import ServerGroup

__all__ = ["Collect", "Engine", "input_stream", "rows_of"]


class Engine:
    """Runs epochs of the job that `build(env)` describes, from empty state.

    Args:
        group: the state servers; a later engine takes the ranges over from an earlier one.
        fence: greater than that of every earlier engine on `group`.
    """

    def __init__(
        self,
        spark: SparkSession,
        group: ServerGroup,
        build: Callable[[StreamEnvironment], object],
        *,
        fence: int,
        parallelism: int = 2,
        max_parallelism: int = 16,
        placement: Placement | None = None,
        key_hash: str = SPARK_XXHASH64,
    ) -> None:
        env = StreamEnvironment(spark)
        build(env)
        env.graph.check()
        self.graph = env.graph
        self._token = group.token
        self._parallelism, self._max_parallelism = parallelism, max_parallelism
        run = f"f{fence}r0"
        uids = [o.uid for o in self.graph.operators]
        self.fleet = RangeFleet(
            LocalServers(group), uids, parallelism, max_parallelism, "memory://unused"
        )
        self.fleet.open(run, 0, {}, 0)
        self.kv_states = KvStateLocationRegistry.of(self.graph)
        self.lookups = LookupSource(self.fleet, LocalServers(group), self.kv_states, key_hash)
        planner = EpochPlanner(
            spark,
            self.graph,
            placement or LocalPlacement(),
            parallelism,
            max_parallelism,
            key_hash=key_hash,
        )
        self.runner = EpochRunner(
            self.graph,
            planner,
            self.fleet,
            parallelism,
            RunIdentity("lineage", run, group.token),
            epoch=0,
            watermarks=Watermarks.at_first(planner.clocks),
            schemas={},
            kv_states=self.kv_states,
        )

    def epoch(self, *frames: DataFrame) -> EpochOutcome:
        """Run an epoch over one static frame for each input, or a tick without any."""
        if not frames:
            return self.runner.run(None)
        pairs = zip(self.graph.inputs, frames, strict=True)
        static = JobGraph(inputs=[InputNode(node.uid, frame) for node, frame in pairs])
        return self.runner.run(tagged_union(static))

    def values(self, uid: str, name: str) -> dict[Any, Any]:
        """By key, the committed value of a value state."""
        return {key: values[0] for key, values in self.lists(uid, name).items()}

    def lists(self, uid: str, name: str) -> dict[Any, list[Any]]:
        """By key, the committed entries of a value or list state; a key of one column is bare."""
        operator = next(o for o in self.graph.operators if o.uid == uid)
        known = [s for s in self.runner.schemas.get(uid, ()) if s.name == name]
        if not known:
            return {}
        decode, keys = decoder(known[0].type), KeyCodec(operator.key_types)
        found: dict[Any, list[Any]] = {}
        for entry, value in self._entries(uid):
            size = int.from_bytes(entry[3:7], "big")
            if entry[7 + size :].startswith(state_id(name)):
                key = keys.decode(entry[7 : 7 + size])
                found.setdefault(key[0] if len(key) == 1 else key, []).append(decode(value))
        return found

    def _entries(self, uid: str) -> list[tuple[bytes, bytes]]:
        """Everything that the ranges of an operator hold by key, at the committed versions."""
        entries: list[tuple[bytes, bytes]] = []
        for subtask, leased in enumerate(self.fleet.leased(uid)):
            groups = range_of(subtask, self._parallelism, self._max_parallelism)
            prefixes = [key_prefix(g, b"")[:3] for g in range(groups.start, groups.end + 1)]
            assert all(p[2] == KEYED_STATE for p in prefixes)
            with closing(StateClient.connect(leased.door.address, self._token)) as client:
                for scan in client.range(leased.lease).scan_many(leased.version, prefixes):
                    assert scan.complete
                    entries += zip(scan.keys, scan.values, strict=True)
        return entries


def input_stream(env: StreamEnvironment, uid: str, ddl: str) -> DataStream:
    """An input of this schema; its rows come from `Engine.epoch`."""
    schema = StructType.fromDDL(ddl)
    assert isinstance(schema, StructType)
    nothing = env.spark.readStream.format("rate").load()
    columns = [sf.lit(None).cast(f.dataType).alias(f.name) for f in schema.fields]
    return env.from_spark(uid, nothing.select(*columns))


class Collect:
    """A sink whose committables are the rows themselves: just what acknowledged attempts sent."""

    def open_writer(self, stage: StageId, schema: pa.Schema) -> "_CollectWriter":  # noqa: ARG002
        return _CollectWriter()

    def publish(self, lineage: str, checkpoint_id: int, committables: list[dict]) -> int:  # noqa: ARG002
        return len(committables)

    def restore(self, point: SinkRestore) -> list[str]:  # noqa: ARG002
        return []


@dataclass
class _CollectWriter:
    rows: list[list[Any]] = field(default_factory=list)

    def write(self, batch: pa.RecordBatch) -> None:
        self.rows += [list(row.values()) for row in batch.to_pylist()]

    def finish(self) -> list[dict[str, Any]]:
        return [{"rows": self.rows}] if self.rows else []

    def abort(self) -> None:
        self.rows = []


def rows_of(outcome: EpochOutcome, uid: str) -> list[tuple[Any, ...]]:
    """What an epoch sent to the `Collect` sink of this uid, subtask by subtask."""
    items = outcome.committables().get(uid, [])
    return [tuple(row) for item in items for row in item["rows"]]
