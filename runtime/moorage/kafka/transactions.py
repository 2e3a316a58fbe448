"""One transaction of Kafka for each checkpoint, and what tells whether it was committed.

A transaction holds a checkpoint's records and, as an offset of a consumer group of the sink's own,
the checkpoint's id with the fence of the driver that published it: the ledger. So both are there or
neither is. Whoever begins asks Kafka first to settle what another left open, which also shuts that
one out, and then reads the ledger. Called by the sink, on the driver.
"""

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from moorage.kafka.client import DENIED, GONE, library
from moorage_state.errors import Fenced, MoorageError, Retryable, UserError
from moorage_state.formats import read_json, refuse_unknown, require_known_format

__all__ = ["OURS", "Ledger", "Transactions", "producer_config", "transactional_id"]

_log = logging.getLogger(__name__)

OURS = frozenset({
    "acks",
    "delivery.report.only.error",
    "enable.gapless.guarantee",
    "enable.idempotence",
    "group.id",
    "transactional.id",
})  # fmt: skip
"""Options of the client that exactly once stands on."""

_FORMAT = 1
_FIELDS = ("format", "fence", "checkpoint")
_TRANSACTION_MS = 600_000
_ANSWER_SECONDS = 60.0
_ABORT_SECONDS = 10.0
"""What cannot be aborted so fast is settled by whoever begins next."""
_FULL_SECONDS = 0.5
# Another try would end alike.
_USERS = DENIED | GONE | {
    "INVALID_TRANSACTION_TIMEOUT",
    "MSG_SIZE_TOO_LARGE",
    "POLICY_VIOLATION",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ledger:
    """What was published last, and by the driver with which fence."""

    fence: int
    checkpoint: int

    def to_text(self) -> str:
        """The metadata of the offset."""
        return json.dumps({"format": _FORMAT, "fence": self.fence, "checkpoint": self.checkpoint})

    @classmethod
    def from_text(cls, text: str, where: str) -> "Ledger":
        """What `to_text` made.

        Raises:
            NewerFormat: a newer Moorage wrote it.
            UserError: nobody's sink wrote it.
        """
        try:
            found = read_json(text)
            require_known_format("record of a kafka sink", found["format"], _FORMAT, where)
            refuse_unknown("record of a kafka sink", found, _FIELDS, where)
            return cls(int(found["fence"]), int(found["checkpoint"]))
        except (ValueError, OverflowError, KeyError, TypeError) as error:
            raise UserError(
                f"the consumer group of a kafka sink has an offset that no sink wrote: {where} "
                f"metadata={text!r:.100}; nobody else may commit to it: delete the group"
            ) from error


def transactional_id(lineage: str, uid: str) -> str:
    """The name of a sink's transactions, and of the group that keeps its ledger."""
    return f"moorage-{lineage}-{uid}"


def producer_config(config: Mapping[str, str], name: str) -> dict[str, Any]:
    """What the producer of a sink is made with."""
    return {
        "transaction.timeout.ms": str(_TRANSACTION_MS),
        # As Java's clients: one key, one partition, whoever wrote it.
        "partitioner": "murmur2_random",
        **config,
        "transactional.id": name,
        "delivery.report.only.error": True,
        "logger": _log,
    }


class Transactions:
    """One driver's right to publish; used until it fails once, or another takes it.

    Args:
        config: of the clients.
        name: see `transactional_id`.
        topic: a topic that is there; the ledger is an offset of its first partition.
        fence: of this driver.

    Raises:
        Fenced: a driver with a later fence has published.
        Retryable: Kafka does not answer.
        UserError: it refuses, or what the ledger holds is not the sink's.
    """

    def __init__(
        self,
        config: Mapping[str, str],
        name: str,
        topic: str,
        fence: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kafka = library()
        self._name = name
        self._topic = topic
        self._fence = fence
        self._clock = clock
        self._failed: Any = None
        full = producer_config(config, name)
        self._limit_seconds = int(full["transaction.timeout.ms"]) / 1000
        self._group = self._kafka.Consumer({
            **config,
            "group.id": name,
            "enable.auto.commit": False,
            "logger": _log,
        })  # fmt: skip
        self._producer = self._kafka.Producer(full)
        # The order is the point: until what another left open is settled, the ledger may change.
        self._ask(lambda: self._producer.init_transactions(_ANSWER_SECONDS), "beginning")
        self.ledger = self._read()
        if self.ledger is not None and self.ledger.fence > fence:
            raise Fenced(
                f"another driver has published under a later fence: transactional_id={name} "
                f"fence={fence} found={self.ledger.fence}; end this process, the other one goes on"
            )

    def close(self) -> None:
        """Let go of the connections; what is open is settled by whoever begins next."""
        self._group.close()

    def publish(self, checkpoint: int, tables: Iterator[pa.Table], topic: str | None) -> None:
        """Commit the records of a checkpoint, unless the ledger has it.

        Args:
            tables: columns as the sink checked them.
            topic: of all records; None where a column says it.

        Raises:
            Retryable: whether it was committed is for whoever begins next to see.
            UserError: Kafka refuses these records, or they take too long for one transaction.
        """
        if self.ledger is not None and self.ledger.checkpoint == checkpoint:
            return
        done = Ledger(self._fence, checkpoint)
        began, self._failed = self._clock(), None
        where = f"transactional_id={self._name} checkpoint={checkpoint}"
        self._group.poll(0)  # what it logs waits for that
        try:
            self._producer.begin_transaction()
            for table in tables:
                for batch in table.to_batches():
                    self._produce(batch, topic)
            self._send_ledger(done)
            self._commit(began)
        except BaseException as error:
            # Before the abort, which takes back what waits and reports that, too.
            why = self._why(error, where, self._clock() - began)
            self._abort()
            if why is None:
                raise
            raise why from error
        self.ledger = done

    def _produce(self, batch: pa.RecordBatch, topic: str | None) -> None:
        columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
        nothing = [None] * batch.num_rows
        topics = columns.get("topic", nothing) if topic is None else [topic] * batch.num_rows
        rows = zip(
            topics,
            columns["value"],
            columns.get("key", nothing),
            columns.get("partition", nothing),
            columns.get("headers", nothing),
            strict=True,
        )
        for to, value, key, partition, headers in rows:
            if to is None:
                raise UserError("a row names no topic, and the sink has none: column=topic")
            more = {} if partition is None else {"partition": partition}
            if headers:
                more["headers"] = [(pair["key"], pair["value"]) for pair in headers]
            self._send(to, value, key, more)
        self._producer.poll(0)

    def _send(self, topic: str, value: Any, key: Any, more: dict[str, Any]) -> None:
        while True:
            try:
                self._producer.produce(topic, value, key, on_delivery=self._delivered, **more)
            except BufferError:
                # The client's queue is full; what is delivered meanwhile makes room.
                self._producer.poll(_FULL_SECONDS)
                if self._failed is not None:
                    raise self._kafka.KafkaException(self._failed) from None
            else:
                return

    def _delivered(self, error: Any, _message: Any) -> None:
        """Called for records that could not be delivered; the first says why."""
        self._failed = self._failed or error

    def _send_ledger(self, done: Ledger) -> None:
        at = self._kafka.TopicPartition(self._topic, 0, done.checkpoint, done.to_text())
        member = self._group.consumer_group_metadata()
        self._producer.send_offsets_to_transaction([at], member, _ANSWER_SECONDS)

    def _commit(self, began: float) -> None:
        """Commit. Where no answer comes the question is put again, as long as it may be open."""
        while True:
            try:
                self._producer.commit_transaction(_ANSWER_SECONDS)
            except self._kafka.KafkaException as error:
                known = error.args[0]
                if not known.retriable() or self._clock() - began > self._limit_seconds:
                    raise
                _log.warning("kafka_commit_repeated: %s", known.str())
            else:
                return

    def _abort(self) -> None:
        try:
            self._producer.abort_transaction(_ABORT_SECONDS)
        except self._kafka.KafkaException as error:
            _log.warning("kafka_transaction_not_aborted: %s", error.args[0].str())

    def _why(self, error: BaseException, where: str, seconds: float) -> MoorageError | None:
        """The error for one of Kafka's; None for others."""
        if not isinstance(error, self._kafka.KafkaException):
            return None
        known = self._failed or error.args[0]
        if seconds > self._limit_seconds:
            return UserError(
                f"the output of a checkpoint took longer than a transaction may: {where} "
                f"seconds={seconds:.0f} limit={self._limit_seconds:.0f}; raise "
                f"kafka.transaction.timeout.ms (the brokers allow up to their "
                f"transaction.max.timeout.ms), or take checkpoints more often"
            )
        return _failure(known, f"publishing to kafka failed: {where}")

    def _read(self) -> Ledger | None:
        asked = [self._kafka.TopicPartition(self._topic, 0)]
        [found] = self._ask(
            lambda: self._group.committed(asked, _ANSWER_SECONDS), "reading the ledger"
        )
        if found.error is not None:
            raise _failure(found.error, f"reading the ledger: topic={self._topic}")
        if found.offset < 0:
            return None
        return Ledger.from_text(found.metadata or "", f"group={self._name} topic={self._topic}")

    def _ask(self, question: Callable[[], Any], what: str) -> Any:
        try:
            return question()
        except self._kafka.KafkaException as error:
            raise _failure(
                error.args[0], f"kafka did not answer as it should: {what}: {self._name}"
            ) from error


def _failure(error: Any, what: str) -> MoorageError:
    kind = UserError if error.name() in _USERS else Retryable
    return kind(f"{what}: {error.name()}: {error.str()}")
