"""A Kafka in this process's memory to try the job with, and an auditor of what the job writes.

    python brokers.py            # prints the address, then each second what it sees
    KAFKA=<address> moorage run job.yaml      # in another terminal; kill it, start it again

The brokers are the mock ones of librdkafka: good to try a job, but they show records of
transactions that are not committed, and shut nobody out.
"""

import argparse
import json
import time
from collections import Counter

from confluent_kafka import Consumer, KafkaError, Producer

USERS = 7


def main() -> None:
    """Produce events, check counts, until Ctrl-C."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--rate", type=int, default=100, help="events a second")
    rate = options.parse_args().rate
    producer = Producer({"test.mock.num.brokers": 1, "linger.ms": 0})
    [broker] = producer.list_topics(timeout=10).brokers.values()
    address = f"{broker.host}:{broker.port}"
    # The mock makes a topic when something is written to it.
    for topic in ("events", "counts"):
        producer.produce(topic, b"", key=b"nobody")
    producer.flush(10)
    print(json.dumps({"brokers": address}), flush=True)
    consumer = Consumer({
        "bootstrap.servers": address,
        "group.id": "auditor",
        "auto.offset.reset": "earliest",
        "topic.metadata.refresh.interval.ms": 1000,
    })  # fmt: skip
    consumer.subscribe(["counts"])
    sent, last, wrong = 0, Counter[str](), 0
    while True:
        began = time.monotonic()
        for _ in range(rate):
            producer.produce("events", b"", key=f"user-{sent % USERS}".encode())
            sent += 1
        producer.flush(10)
        while (left := began + 1 - time.monotonic()) > 0:
            for message in consumer.consume(1000, min(left, 0.1)):
                if (error := message.error()) is not None:
                    if error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - its name
                        print(json.dumps({"error": error.str()}), flush=True)
                elif message.value():
                    found = json.loads(message.value())
                    # The next one, or it was lost, or it came twice.
                    wrong += found["count"] != last[found["user"]] + 1
                    last[found["user"]] = found["count"]
        counted = sum(n for user, n in last.items() if user != "nobody")
        print(json.dumps({"sent": sent, "counted": counted, "wrong": wrong}), flush=True)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("bye")
