"""librdkafka's clients: imported when they are used, asked with a time limit, errors told apart.

The errors of a source cross Spark as text, so they are made for that; see
`moorage.engine.task_failures`. What a client logs goes to Python's logging.
"""

import logging
import re
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

from moorage.kafka.offsets import Offsets, Partition
from moorage.kafka.options import SourceOptions
from moorage_state.errors import Retryable, UserError

__all__ = ["DENIED", "GONE", "Brokers", "OffsetsLost", "SourceFailure", "check_client", "library"]

_log = logging.getLogger(__name__)

# Tries do not mend these.
DENIED = frozenset({
    "TOPIC_AUTHORIZATION_FAILED",
    "GROUP_AUTHORIZATION_FAILED",
    "CLUSTER_AUTHORIZATION_FAILED",
    "SASL_AUTHENTICATION_FAILED",
    "UNSUPPORTED_SASL_MECHANISM",
    "_AUTHENTICATION",
    "_INVALID_ARG",
})  # fmt: skip
GONE = frozenset({"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"})


class SourceFailure(Exception):
    """A read failed; the driver learns from the text whether to try again."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"[moorage:{self.code}] {self.message}"


class OffsetsLost(SourceFailure):
    """What the job must read next is no longer there."""

    def __init__(self, lost: str) -> None:
        super().__init__(
            "source_offsets_lost",
            f"the source no longer has what the job must read next, and nothing was skipped: "
            f"{lost}; restore from a newer point, or set spec.restore.onMissingOffsets: Skip (or "
            f"the input's own failOnDataLoss=false) to go on with the earliest that is there",
        )


def library() -> ModuleType:
    """confluent_kafka. Raises UserError where it is not installed."""
    try:
        import confluent_kafka
    except ImportError as error:
        raise UserError(
            "kafka's source and sink need the package confluent-kafka, on the driver and on "
            "executors; install moorage[kafka], or put it into the job's image"
        ) from error
    module: ModuleType = confluent_kafka
    return module


def check_client(config: Mapping[str, Any], kind: str = "Consumer") -> None:
    """Let librdkafka judge its options; no broker is asked.

    Args:
        kind: the class of client.

    Raises UserError: it does not know one, or values do not go together.
    """
    kafka = library()
    try:
        getattr(kafka, kind)({**config, "logger": _log})
    except kafka.KafkaException as error:
        raise UserError(
            f"kafka's client refuses its options: {error.args[0].str()}; the options that begin "
            f"with 'kafka.' are librdkafka's"
        ) from error


def consumer_config(config: Mapping[str, str]) -> dict[str, Any]:
    """What a consumer is made with: it commits nothing, and never jumps to another offset."""
    return {
        # Fetched ahead, by a task that reads one partition; and how long a broker waits at its end.
        "queued.max.messages.kbytes": "16384",
        "fetch.wait.max.ms": "50",
        "group.id": "moorage",
        **config,
        "enable.auto.commit": "false",
        "enable.auto.offset.store": "false",
        "enable.partition.eof": "true",
        "auto.offset.reset": "error",
    }


def failure_of(error: Any, what: str) -> SourceFailure:
    """The failure for a `KafkaError`."""
    code = UserError.code if error.name() in DENIED else Retryable.code
    return SourceFailure(code, f"kafka did not answer as it should: {what}: {error.str()}")


def is_gone(error: Any) -> bool:
    """Whether a `KafkaError` says that the topic or partition is not there."""
    return error.name() in GONE


class Brokers:
    """What a source asks of the brokers: which partitions there are, and how far they go."""

    def __init__(self, options: SourceOptions) -> None:
        from confluent_kafka.admin import AdminClient

        kafka = library()
        self._kafka = kafka
        self._options = options
        self._seconds = options.timeout_ms / 1000
        # Two clients: one makes no topic by asking for it, the other asks for all offsets at once.
        self._consumer = kafka.Consumer({**consumer_config(options.client), "logger": _log})
        self._admin = AdminClient({**options.client, "logger": _log})
        isolation = options.client.get("isolation.level", "read_committed").upper()
        self._isolation = kafka.IsolationLevel[isolation]

    def partitions(self) -> set[Partition]:
        """Of all topics that the options name and that are there."""
        # What the clients log waits for this, and nothing else polls them.
        self._consumer.poll(0)
        self._admin.poll(0)
        found = self._topics()
        if self._options.assigned:
            named = self._options.assigned.items()
            return {(t, p) for t, each in named for p in each if p in found.get(t, ())}
        return {(topic, p) for topic, each in found.items() for p in each}

    def earliest(self, partitions: Iterable[Partition]) -> Offsets:
        """The first offset that is left of each."""
        from confluent_kafka.admin import OffsetSpec

        return self._offsets(partitions, OffsetSpec.earliest())

    def latest(self, partitions: Iterable[Partition]) -> Offsets:
        """The offset that follows the last record of each; the last that is committed."""
        from confluent_kafka.admin import OffsetSpec

        return self._offsets(partitions, OffsetSpec.latest())

    def close(self) -> None:
        """Let go of the connections."""
        self._consumer.close()

    def _topics(self) -> dict[str, list[int]]:
        pattern = self._options.pattern
        names: Iterable[str | None] = [None] if pattern else self._options.topics
        found: dict[str, list[int]] = {}
        for name in names:
            for topic, meta in self._listed(name).items():
                if pattern and not re.fullmatch(pattern, topic):
                    continue
                if meta.error is None:
                    found[topic] = list(meta.partitions)
                elif not is_gone(meta.error):
                    raise failure_of(meta.error, f"topic={topic}")
        return found

    def _listed(self, name: str | None) -> dict[str, Any]:
        try:
            args = () if name is None else (name,)
            listed: dict[str, Any] = self._consumer.list_topics(*args, timeout=self._seconds).topics
        except self._kafka.KafkaException as error:
            raise failure_of(error.args[0], "listing topics") from error
        return listed

    def _offsets(self, partitions: Iterable[Partition], spec: Any) -> Offsets:
        asked = {self._kafka.TopicPartition(t, p): spec for t, p in sorted(partitions)}
        if not asked:
            return {}
        found: Offsets = {}
        answers = self._admin.list_offsets(
            asked, isolation_level=self._isolation, request_timeout=self._seconds
        )
        for at, answer in answers.items():
            try:
                # The request has its own limit, and an answer comes when that is over, too.
                found[at.topic, at.partition] = answer.result().offset
            except self._kafka.KafkaException as error:
                raise failure_of(
                    error.args[0], f"offsets of topic={at.topic} partition={at.partition}"
                ) from error
        return found
