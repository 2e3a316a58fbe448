"""Kafka's transactions in memory: fencing, groups' offsets, in-doubt commits, what readers see.

What librdkafka's mock brokers lack, with the calls of confluent_kafka that the sink makes. It
stands in for that module; errors are the library's own.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

__all__ = ["FakeKafka", "fenced", "lost_reply", "must_abort"]


def fenced() -> KafkaException:
    return KafkaException(KafkaError(KafkaError._FENCED, "fenced by a newer instance", fatal=True))


def lost_reply() -> KafkaException:
    return KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer", retriable=True))


def must_abort(code: int = KafkaError.COORDINATOR_NOT_AVAILABLE) -> KafkaException:
    return KafkaException(KafkaError(code, "abort it", txn_requires_abort=True))


@dataclass
class _Open:
    """A transaction that is neither committed nor aborted."""

    records: list[tuple[str, Any, Any, dict[str, Any]]] = field(default_factory=list)
    offsets: dict[str, dict[tuple[str, int], TopicPartition]] = field(default_factory=dict)


class FakeKafka:
    """The module, and one cluster behind it.

    Attributes:
        before, after: what is called around a call of a producer, by its name.
    """

    KafkaException = KafkaException
    TopicPartition = TopicPartition
    servers = "127.0.0.1:1"

    def __init__(self) -> None:
        self.epochs: dict[str, int] = {}
        self.open: dict[str, _Open] = {}
        self.records: list[tuple[str, Any, Any, dict[str, Any]]] = []
        self.offsets: dict[str, dict[tuple[str, int], TopicPartition]] = {}
        self.before: dict[str, Callable[[], None]] = {}
        self.after: dict[str, Callable[[], None]] = {}
        self.configs: list[dict[str, Any]] = []

    def create(self, topic: str) -> None:
        del topic

    def seen(self, topic: str) -> list[Any]:
        """Values that a reader of committed records sees."""
        return [value for to, value, _key, _more in self.records if to == topic]

    def Producer(self, config: dict[str, Any]) -> "_Producer":  # noqa: N802 - the library's
        self.configs.append(config)
        return _Producer(self, config["transactional.id"])

    def Consumer(self, config: dict[str, Any]) -> "_Consumer":  # noqa: N802 - the library's
        self.configs.append(config)
        return _Consumer(self, config["group.id"])

    def once(self, where: dict[str, Callable[[], None]], call: str, error: Exception) -> None:
        """Let one call raise."""

        def fail() -> None:
            del where[call]
            raise error

        where[call] = fail


class _Consumer:
    def __init__(self, kafka: FakeKafka, group: str) -> None:
        self._kafka, self._group = kafka, group

    def consumer_group_metadata(self) -> str:
        return self._group

    def poll(self, _timeout: float) -> None:
        pass

    def committed(self, asked: list[TopicPartition], _timeout: float) -> list[TopicPartition]:
        kept = self._kafka.offsets.get(self._group, {})
        return [kept.get((at.topic, at.partition), TopicPartition(at.topic, 0)) for at in asked]

    def close(self) -> None:
        pass


class _Producer:
    def __init__(self, kafka: FakeKafka, name: str) -> None:
        self._kafka, self._name, self._epoch = kafka, name, -1

    def _call(self, name: str, effect: Callable[[], None]) -> None:
        self._kafka.before.get(name, lambda: None)()
        if name != "init" and self._epoch != self._kafka.epochs.get(self._name):
            raise fenced()
        effect()
        self._kafka.after.get(name, lambda: None)()

    def init_transactions(self, _timeout: float) -> None:
        def effect() -> None:
            self._epoch = self._kafka.epochs.get(self._name, -1) + 1
            self._kafka.epochs[self._name] = self._epoch
            self._kafka.open.pop(self._name, None)

        self._call("init", effect)

    def begin_transaction(self) -> None:
        # Asks no broker: who is shut out learns it later.
        if self._epoch == self._kafka.epochs.get(self._name):
            assert self._name not in self._kafka.open, "a transaction is open already"
            self._kafka.open[self._name] = _Open()

    def produce(self, topic: str, value: Any, key: Any, *, on_delivery: Any, **more: Any) -> None:
        del on_delivery
        record = (topic, value, key, more)
        self._call("produce", lambda: self._kafka.open[self._name].records.append(record))

    def poll(self, _timeout: float) -> int:
        return 0

    def send_offsets_to_transaction(
        self, offsets: list[TopicPartition], group: str, _timeout: float
    ) -> None:
        kept = {(at.topic, at.partition): at for at in offsets}
        self._call("offsets", lambda: self._kafka.open[self._name].offsets.update({group: kept}))

    def commit_transaction(self, _timeout: float) -> None:
        def effect() -> None:
            # Asked again after a reply that was lost, it has nothing to do.
            done = self._kafka.open.pop(self._name, _Open())
            self._kafka.records += done.records
            self._kafka.offsets.update(done.offsets)

        self._call("commit", effect)

    def abort_transaction(self, _timeout: float) -> None:
        def effect() -> None:
            self._kafka.open.pop(self._name, None)

        self._call("abort", effect)
