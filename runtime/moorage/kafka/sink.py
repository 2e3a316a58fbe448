"""The sink that writes to Kafka exactly once: a checkpoint is one transaction.

Rows wait beside the checkpoints, as those of `foreach_checkpoint` do, until the checkpoint that
covers them is complete; then the driver publishes them. What was published is in Kafka itself, see
`moorage.kafka.transactions`, and in the sink's own record beside the checkpoints, which is written
after it; a start makes the second agree with the first. Where it cannot tell yet which rows these
are, it leaves a mark in the record's place, and later starts ask again.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import pyarrow as pa
import pyarrow.types as pt

from moorage.api.foreach_sinks import ForeachCheckpoint
from moorage.api.sinks import CheckpointInfo, LiveOutput, SinkContext, SinkRestore
from moorage.kafka.client import check_client
from moorage.kafka.options import client_config
from moorage.kafka.transactions import OURS, Transactions, producer_config, transactional_id
from moorage.sinks.bucket import open_output
from moorage.sinks.file_names import run_age
from moorage_state.errors import Bug, Retryable, UserError

__all__ = ["KafkaSink"]

_UNKNOWN = ".unknown"


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pt.is_string(kind) or pt.is_large_string(kind) or pt.is_binary(kind)
        or pt.is_large_binary(kind)
    )  # fmt: skip


def _is_headers(kind: pa.DataType) -> bool:
    if not (pt.is_list(kind) or pt.is_large_list(kind)) or not pt.is_struct(kind.value_type):
        return False
    pair = kind.value_type
    return [pair.field(i).name for i in range(pair.num_fields)] == ["key", "value"]


_COLUMNS = {
    "value": (_is_text, "a string or binary"),
    "key": (_is_text, "a string or binary"),
    "topic": (pt.is_string, "a string"),
    "partition": (pt.is_int32, "an int"),
    "headers": (_is_headers, "an array<struct<key:string,value:binary>>"),
}


class KafkaSink(ForeachCheckpoint):
    """Writes rows to Kafka; readers with `isolation.level=read_committed` see each exactly once.

    Args:
        topic: of all rows; None where their column `topic` says it.
        ledger_topic: a topic that is there for good, for the sink's own offset; `topic` by default.
        options: of the client, with `kafka.` before their names.

    Columns are those of Spark's connector: `value`, and if wanted `key`, `headers`, `partition`,
    and `topic`.
    """

    _kind = "KafkaSink"

    def __init__(
        self, topic: str | None = None, *, ledger_topic: str | None = None, **options: Any
    ) -> None:
        super().__init__(_not_bound)
        stray = sorted(name for name in options if not name.lower().startswith("kafka."))
        if stray:
            raise UserError(
                f"a kafka sink has no such option: unknown={stray}; options of its client begin "
                f"with 'kafka.'"
            )
        if not topic and not ledger_topic:
            raise UserError(
                "a kafka sink without a topic takes it from the column topic, and then needs a "
                "topic for its own offset: KafkaSink(ledger_topic='...')"
            )
        self.topic = topic or None
        self._ledger_topic = str(ledger_topic or topic)
        self._config = client_config(options, OURS)
        self._transactions: Transactions | None = None

    def __getstate__(self) -> dict[str, object]:
        """Executors only stage: they get no secret."""
        return {**super().__getstate__(), "_config": {}, "_transactions": None}

    def bind(self, context: SinkContext) -> Self:
        """The same sink, checked against the rows that come. Raises UserError."""
        self._check_columns(context)
        check_client(producer_config(self._config, "moorage"), "Producer")
        bound = super().bind(context)
        bound._function = bound._publish_rows  # noqa: SLF001 - of the copy
        return bound

    def _check_columns(self, context: SinkContext) -> None:
        names = context.schema.names
        wanted = ["value"] if self.topic else ["value", "topic"]
        if (missing := [n for n in wanted if n not in names]) or (set(names) - set(_COLUMNS)):
            raise UserError(
                f"a kafka sink takes the columns {list(_COLUMNS)}: uid={context.uid} "
                f"missing={missing} unknown={sorted(set(names) - set(_COLUMNS))}; make one value "
                f"of a row's columns, with json.dumps say"
            )
        if self.topic and "topic" in names:
            raise UserError(
                f"rows have a topic and so has the sink; leave one out: uid={context.uid} "
                f"topic={self.topic}"
            )
        for field in context.schema:
            right, needed = _COLUMNS[field.name]
            if not right(field.type):
                raise UserError(
                    f"a column of a kafka sink has another type: uid={context.uid} "
                    f"column={field.name} type={field.type} needed={needed}"
                )

    def restore(self, point: SinkRestore) -> list[str]:
        """Shut out older drivers, believe what Kafka says was published, then as any sink.

        Raises:
            Fenced: a later driver has published.
            Retryable: it cannot be told whether Kafka has rows that the point covers.
        """
        if self._transactions is not None:
            self._transactions.close()
            self._transactions = None
        name = transactional_id(point.lineage, self._uid)
        fence = run_age(point.run)[0]
        self._transactions = Transactions(self._config, name, self._ledger_topic, fence)
        if self._transactions.ledger is not None:
            self._settle(point, self._transactions.ledger.checkpoint)
        return super().restore(point)

    def _settle(self, point: SinkRestore, newest: int) -> None:
        """Record what Kafka has: a driver may have ended between the transaction and its record."""
        handed, store = self._handed(point.lineage), open_output(self._staging)
        folder = self._folder(point.lineage, "handed")
        keys = [info.key for info in store.list(folder) if info.key.endswith(_UNKNOWN)]
        marked = {int(key.removeprefix(folder).removesuffix(_UNKNOWN)): key for key in keys}
        for published in sorted(marked.keys() | {newest} - handed.keys()):
            files = handed.get(published, _files_of(point, published))
            if files is None and (point.live is None or published in marked):
                if _may_share(point, published, handed):
                    raise Retryable(
                        f"kafka has the output of a checkpoint that cannot be read, and rows that "
                        f"the restore point covers may be among it: sink={self._uid} "
                        f"published=chk-{published} restore_point={point.history[-1]}; see which "
                        f"manifest the driver could not read, and put it back, or restore a "
                        f"checkpoint that was published before"
                    )
                store.put(f"{folder}{published:020d}{_UNKNOWN}", b"")
                continue
            self._record(CheckpointInfo(point.lineage, published), files or [])
            if published in marked:
                store.delete(marked[published])

    def _publish_rows(self, tables: Any, info: CheckpointInfo) -> None:
        if self._transactions is None:
            raise Bug(f"a kafka sink publishes before it was restored: uid={self._uid}")
        self._transactions.publish(info.checkpoint_id, tables, self.topic)


def _files_of(point: SinkRestore, checkpoint_id: int) -> list[str] | None:
    """What a checkpoint covers; None if it is not among what can be restored."""
    own = LiveOutput(point.history, point.committables)
    for output in (own, *(point.live or ())):
        if output.history and output.history[-1] == checkpoint_id:
            return [item["file"] for item in output.committables]
    return None


def _may_share(point: SinkRestore, published: int, handed: Mapping[int, Sequence[str]]) -> bool:
    """Whether rows are to be published that may be among those of a checkpoint.

    A savepoint covers what the next checkpoint covers, too; a later point only what came since.
    """
    if not point.history or point.history[-1] >= published or point.history[-1] in handed:
        return False
    known = {file for files in handed.values() for file in files}
    return any(item["file"] not in known for item in point.committables)


def _not_bound(_tables: Any, info: CheckpointInfo) -> None:
    raise Bug(f"a kafka sink publishes that is attached to no stream: {info}")
