"""The options of Kafka's source, named as those of Spark's connector, and of its clients.

Called where a job is described, and by the source in Spark's own processes. What begins with
`kafka.` goes to librdkafka as it stands; its values may be secrets and are in no message.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from moorage_state.errors import UserError
from moorage_state.formats import read_json

__all__ = ["SourceOptions", "client_config"]

EARLIEST = -2
"""In startingOffsets: the oldest record that there is."""
LATEST = -1
"""In startingOffsets: what comes after the newest record."""

StartingOffsets = int | dict[str, dict[int, int]]

_CLIENT = "kafka."
_SOURCE = (
    "assign",
    "failOnDataLoss",
    "includeHeaders",
    "kafkaConsumer.pollTimeoutMs",
    "maxOffsetsPerTrigger",
    "startingOffsets",
    "subscribe",
    "subscribePattern",
)
_CHOICES = ("subscribe", "subscribePattern", "assign")
_TIMEOUT_MS = 120_000
# What the source's promises stand on.
_OURS = frozenset({
    "auto.offset.reset",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "enable.partition.eof",
    "key.deserializer",
    "value.deserializer",
})  # fmt: skip
# What people bring from Java clients, and what librdkafka calls it.
_JAVA = {
    "sasl.jaas.config": "kafka.sasl.username and kafka.sasl.password",
    "ssl.truststore.location": "kafka.ssl.ca.location, a file of PEM",
    "ssl.truststore.password": "nothing: kafka.ssl.ca.location has none",
    "ssl.truststore.type": "nothing: kafka.ssl.ca.location is PEM",
}


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What to read, and how.

    Attributes:
        topics: the names of `subscribe` or `assign`; empty with a pattern.
        pattern: a regular expression for whole names of topics; "" for none.
        assigned: the partitions of each topic, where `assign` names them.
        starting: EARLIEST, LATEST, or an offset for each partition.
        timeout_ms: without an answer or a record for so long, a read has failed.
        client: the configuration of librdkafka's clients.
    """

    topics: tuple[str, ...]
    pattern: str
    assigned: dict[str, tuple[int, ...]]
    starting: StartingOffsets
    fail_on_data_loss: bool
    max_offsets: int | None
    headers: bool
    timeout_ms: int
    client: dict[str, str] = field(repr=False)  # with passwords

    def names(self, topic: str, partition: int) -> bool:
        """Whether this partition is to be read, if it is there."""
        if self.pattern:
            return re.fullmatch(self.pattern, topic) is not None
        return topic in self.topics and partition in self.assigned.get(topic, (partition,))

    @classmethod
    def parse(cls, options: Mapping[str, Any]) -> "SourceOptions":
        """Read options; names of the source are told apart without regard to case, as in Spark.

        Raises:
            UserError: an option is unknown, contradicts another, or has a value of no use.
        """
        names = {name.lower(): name for name in _SOURCE}
        given: dict[str, str] = {}
        unknown = []
        for name, value in options.items():
            if name.lower() in names:
                given[names[name.lower()]] = _text(value)
            elif not name.lower().startswith(_CLIENT):
                unknown.append(name)
        if unknown:
            raise UserError(
                f"kafka's source has no such option: unknown={sorted(unknown)} "
                f"known={list(_SOURCE)}; options of its client begin with 'kafka.'"
            )
        chosen = [name for name in _CHOICES if name in given]
        if len(chosen) != 1:
            raise UserError(
                f"kafka's source needs one of {list(_CHOICES)}: given={chosen}; for example "
                f"subscribe='events'"
            )
        assigned = _assigned(given["assign"]) if "assign" in given else {}
        return cls(
            topics=tuple(assigned) or _topics(given.get("subscribe")),
            pattern=_pattern(given.get("subscribePattern", "")),
            assigned=assigned,
            starting=_starting(given.get("startingOffsets", "latest")),
            fail_on_data_loss=_flag("failOnDataLoss", given, default=True),
            max_offsets=_number("maxOffsetsPerTrigger", given),
            headers=_flag("includeHeaders", given, default=False),
            timeout_ms=_number("kafkaConsumer.pollTimeoutMs", given) or _TIMEOUT_MS,
            client=client_config(options, _OURS),
        )


def client_config(options: Mapping[str, Any], ours: frozenset[str]) -> dict[str, str]:
    """The configuration for librdkafka: what begins with `kafka.`.

    Args:
        ours: names that whoever asks sets itself.

    Raises:
        UserError: one of `ours` is given, a name of Java's clients, or no broker.
    """
    prefix = len(_CLIENT)
    config = {
        name[prefix:]: _text(value)
        for name, value in options.items()
        if name.lower().startswith(_CLIENT)
    }
    if refused := sorted(ours.intersection(config)):
        raise UserError(
            f"these options are set by moorage itself: refused={['kafka.' + n for n in refused]}"
        )
    for name, instead in _JAVA.items():
        if name in config:
            raise UserError(
                f"an option of java's clients that librdkafka does not have: option=kafka.{name}; "
                f"use {instead}"
            )
    if not config.get("bootstrap.servers"):
        raise UserError("no kafka broker is named; set kafka.bootstrap.servers='host:9092'")
    return config


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _topics(text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    topics = tuple(dict.fromkeys(topic.strip() for topic in text.split(",") if topic.strip()))
    if not topics:
        raise UserError("subscribe names no topic; write subscribe='events' or 'events,clicks'")
    return topics


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise UserError(
            f"subscribePattern is no regular expression: pattern={text!r} error={error}"
        ) from error
    return text


def _assigned(text: str) -> dict[str, tuple[int, ...]]:
    try:
        parsed = read_json(text)
        found = {str(t): tuple(sorted({int(p) for p in each})) for t, each in parsed.items()}
    except (ValueError, OverflowError, TypeError, AttributeError) as error:
        found = {}
        cause: Exception | None = error
    else:
        cause = None
    if not found or not all(found.values()):
        raise UserError(
            f"assign is JSON of topics and their partitions, such as '{{\"events\":[0,1]}}': "
            f"got={text!r:.200}"
        ) from cause
    return found


def _starting(text: str) -> StartingOffsets:
    named = {"earliest": EARLIEST, "latest": LATEST}
    if text.lower() in named:
        return named[text.lower()]
    try:
        parsed = read_json(text)
        return {str(t): {int(p): int(o) for p, o in each.items()} for t, each in parsed.items()}
    except (ValueError, OverflowError, TypeError, AttributeError) as error:
        raise UserError(
            f"startingOffsets is 'earliest', 'latest' or JSON such as "
            f'\'{{"events":{{"0":23,"1":-2}}}}\' (-2 earliest, -1 latest): got={text!r:.200}'
        ) from error


def _flag(name: str, given: Mapping[str, str], *, default: bool) -> bool:
    text = given.get(name, str(default)).lower()
    if text not in {"true", "false"}:
        raise UserError(f"{name} is true or false: got={text!r}")
    return text == "true"


def _number(name: str, given: Mapping[str, str]) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    if not text.isdecimal() or int(text) == 0:
        raise UserError(f"{name} is a whole number above 0: got={text!r}")
    return int(text)
