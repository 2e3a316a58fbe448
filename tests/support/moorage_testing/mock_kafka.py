"""A Kafka of librdkafka's mock brokers: real sockets and protocol, all in this process's memory.

What they do not do, and tests must not ask of them: they keep no offsets that a transaction
commits, fence no producer, hide no record of an open or aborted transaction, and add no partition
to a topic. They answer with errors that are pushed.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

__all__ = ["MockKafka", "mock_kafka"]

API_KEYS = {"Produce": 0, "InitProducerId": 22, "AddOffsetsToTxn": 25, "EndTxn": 26}


def _library() -> ctypes.CDLL:
    package = Path(confluent_kafka.__file__).parent
    lib = ctypes.CDLL(str(next((package.parent / "confluent_kafka.libs").glob("librdkafka*.so*"))))
    pointer, text, integer = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
    for name, result, arguments in (
        ("rd_kafka_conf_new", pointer, []),
        ("rd_kafka_conf_set", integer, [pointer, text, text, pointer, ctypes.c_size_t]),
        ("rd_kafka_new", pointer, [integer, pointer, text, ctypes.c_size_t]),
        ("rd_kafka_destroy", None, [pointer]),
        ("rd_kafka_mock_cluster_new", pointer, [pointer, integer]),
        ("rd_kafka_mock_cluster_destroy", None, [pointer]),
        ("rd_kafka_mock_cluster_bootstraps", text, [pointer]),
        ("rd_kafka_mock_topic_create", integer, [pointer, text, integer, integer]),
    ):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


class MockKafka:
    """One broker, until `close`."""

    def __init__(self) -> None:
        self._lib = _library()
        conf = self._lib.rd_kafka_conf_new()
        self._lib.rd_kafka_conf_set(conf, b"log_level", b"2", None, 0)
        self._client = self._lib.rd_kafka_new(0, conf, None, 0)
        self._cluster = self._lib.rd_kafka_mock_cluster_new(self._client, 1)
        self.servers: str = self._lib.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()

    def close(self) -> None:
        self._lib.rd_kafka_mock_cluster_destroy(self._cluster)
        self._lib.rd_kafka_destroy(self._client)

    def create(self, topic: str, partitions: int) -> None:
        made = self._lib.rd_kafka_mock_topic_create(self._cluster, topic.encode(), partitions, 1)
        assert made == 0, made

    def fail(self, request: str, *codes: int) -> None:
        """Answer the next requests of a kind with these errors of the protocol."""
        push = self._lib.rd_kafka_mock_push_request_errors
        push.restype = None
        counts = (ctypes.c_void_p(self._cluster), ctypes.c_int16(API_KEYS[request]))
        push(*counts, ctypes.c_size_t(len(codes)), *map(ctypes.c_int, codes))

    def produce(self, topic: str, partition: int, *values: bytes, **more: object) -> None:
        producer = Producer({"bootstrap.servers": self.servers, "linger.ms": 0})
        for value in values:
            producer.produce(topic, value, partition=partition, **more)
        assert producer.flush(20) == 0

    def records(self, topic: str, partition: int = 0) -> list[Message]:
        """All records of a partition."""
        config = {"group.id": "reader", "enable.partition.eof": True, "fetch.wait.max.ms": 20}
        consumer = Consumer({"bootstrap.servers": self.servers, **config})
        consumer.assign([TopicPartition(topic, partition, 0)])
        found: list[Message] = []
        try:
            while True:
                message = consumer.poll(20)
                assert message is not None, "no answer from the mock broker"
                if message.error() is None:
                    found.append(message)
                else:
                    assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                    return found
        finally:
            consumer.close()


@contextmanager
def mock_kafka() -> Iterator[MockKafka]:
    kafka = MockKafka()
    try:
        yield kafka
    finally:
        kafka.close()
