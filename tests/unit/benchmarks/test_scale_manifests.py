"""What a checkpoint costs the driver, on its own code: as many requests whatever the files."""

import pytest
from benchmarks.scale.manifests import Shape, driver

SHAPES = {
    "few": Shape(files=400, servers=4, changed=8),
    "many": Shape(files=40_000, servers=4, changed=8),
    "wide": Shape(files=40_000, servers=16, changed=32),
}


@pytest.fixture(scope="module", params=SHAPES)
def costs(request):
    """By step: requests of the store and messages to servers, each for one server."""
    shape = SHAPES[request.param]
    with driver(shape) as one:
        found = {"checkpoint": one.checkpoint(2), "retire": one.retire(), "restore": one.restore()}
        left = {info.key for info in one.store.list("")}
    return shape, found, left


def test_the_store_is_asked_as_often_whatever_the_size(costs):
    _, found, _ = costs
    assert found["checkpoint"].requests <= 4, "root and log"
    assert found["restore"].requests == 1, "the root"
    assert found["retire"].requests <= 20


def test_each_server_gets_as_many_messages_whatever_its_files(costs):
    shape, found, _ = costs
    messages = {step: spent.messages / shape.servers for step, spent in found.items()}
    assert messages == {"checkpoint": 2, "retire": 0, "restore": 2}


def test_no_part_is_read_and_what_only_the_retired_one_needed_is_gone(costs):
    shape, _, left = costs
    tables = {key for key in left if key.startswith("shared/")}
    assert len(tables) == shape.changed
    assert {key.split("/")[0] for key in left} - {"shared"} == {"chk-2", "log"}
