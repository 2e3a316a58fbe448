"""Mock brokers for the tests of Kafka's source and sink."""

import uuid

import pytest
from moorage_testing.mock_kafka import mock_kafka

from moorage_state.stores import MemoryStore


@pytest.fixture(scope="session")
def kafka():
    with mock_kafka() as brokers:
        yield brokers


@pytest.fixture
def topic(kafka):
    """A topic of two partitions for this test alone."""
    name = f"t{uuid.uuid4().hex}"
    kafka.create(name, 2)
    return name


@pytest.fixture
def store_url():
    """A store of its own, gone afterwards."""
    MemoryStore.forget("kafka")
    yield "memory://kafka"
    MemoryStore.forget("kafka")
