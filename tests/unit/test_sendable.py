"""What cannot go to workers is found while the job is described, with the name of the culprit."""

import threading
from typing import Any

import pytest

from moorage import KeyedProcessFunction
from moorage.api.declarations import check_sendable
from moorage_state.errors import UserError

LOCK = threading.Lock()


class Holding(KeyedProcessFunction):
    def __init__(self):
        self.name = "fine"
        self.lock = threading.Lock()


class Slotted(KeyedProcessFunction):
    def __reduce__(self):
        raise TypeError("no")


def test_an_attribute_that_cannot_be_sent_is_named_with_what_to_do():
    with pytest.raises(
        UserError, match=r"operator=count attribute=Holding\.lock type=lock"
    ) as told:
        check_sendable("operator", "count", Holding())
    assert "cannot pickle '_thread.lock' object" in str(told.value)
    assert "make it where it is used, in open(ctx) say" in str(told.value)


def test_a_name_of_the_jobs_module_that_cannot_be_sent_is_named():
    space: dict[str, Any] = {
        "LOCK": LOCK,
        "KeyedProcessFunction": KeyedProcessFunction,
        "__name__": "__main__",
    }
    exec(  # noqa: S102 - a module that travels by value, as a job's does
        "class Using(KeyedProcessFunction):\n"
        "    def process(self, row, ctx):\n"
        "        with LOCK:\n"
        "            yield row\n",
        space,
    )
    using = space["Using"]
    with pytest.raises(UserError, match="operator=count name=LOCK type=lock"):
        check_sendable("operator", "count", using())


def test_what_refuses_as_a_whole_is_named_by_its_type():
    with pytest.raises(UserError, match="sink=out type=Slotted: no"):
        check_sendable("sink", "out", Slotted())


def test_what_can_be_sent_passes():
    check_sendable("operator", "count", KeyedProcessFunction())
