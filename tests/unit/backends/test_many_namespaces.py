"""More namespaces than a backend keeps handles for."""

import pytest

from moorage_state.descriptors import ReducingStateDescriptor

from .conftest import BACKENDS, Subtasks

SUM = ReducingStateDescriptor("sum", "long", "sum")


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "batch"])
def test_merging_loses_nothing_where_another_key_had_very_many_namespaces(backend, tmp_path):
    subtasks = Subtasks(BACKENDS[backend], tmp_path)
    subtasks.open()

    def namespace(number):
        return subtasks.current.get_partitioned_state(number, "bigint", SUM)

    subtasks.with_key("a")
    namespace(1).add(5)
    namespace(2).add(7)
    subtasks.restore(subtasks.snapshot())
    subtasks.with_key("z")
    for number in range(1023):
        namespace(100 + number).get()
    subtasks.with_key("a")
    subtasks.current.merge_namespaces(1, [2], "bigint", SUM)
    namespace(1).add(100)
    subtasks.with_key("z")
    subtasks.with_key("a")
    assert (namespace(1).get(), namespace(2).get()) == (112, None)
    subtasks.close()
