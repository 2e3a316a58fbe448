"""The contract of keyed state, whose bodies run over every store, on every backend in process."""

import datetime
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from moorage_testing import contract_kinds, contract_ttl
from moorage_testing.contract_machine import machine_over

from moorage_state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from moorage_state.keyed import scanning
from moorage_state.timetolive import StateTtlConfig

BODIES = [*contract_kinds.BODIES, *contract_ttl.BODIES]


@pytest.mark.parametrize("body", BODIES, ids=lambda one: one.__name__)
def test_every_backend_keeps_the_contract(backend, subtasks, options, body):
    # Both formats in turn, over all bodies.
    kind = "savepoint" if BODIES.index(body) % 2 else "checkpoint"
    body(subtasks(backend, 2, options=options[kind]))


def test_expired_state_of_keys_that_never_come_again_goes_while_others_come(op):
    life = StateTtlConfig(datetime.timedelta(milliseconds=10))
    value = ValueStateDescriptor("value", "long", ttl=life)
    items = ListStateDescriptor("items", "long", ttl=life)
    names = MapStateDescriptor("names", "string", "long", ttl=life)
    for n in range(20):
        op.with_key(f"k{n}")
        op.state(value).update(n)
        op.state(items).add(n)
        op.state(names).put("a", n)
    op.now_ms += 10
    op.with_key("k0")
    op.state(items).add(7)
    for _ in range(40):
        op.with_key("another")
    assert op.stored_entries() == 1
    op.with_key("k0")
    assert op.state(items).get() == [7]


def test_every_kind_of_state_is_a_plain_object_per_key_on_every_backend(
    backend, subtasks, monkeypatch
):
    monkeypatch.setattr(scanning, "_SCAN_ENTRIES", 2)
    monkeypatch.setattr(scanning, "_PAGE", 2)
    made: list[Any] = []

    def new():
        while made:
            made.pop().close()
        one = subtasks(backend, 2)
        one.close()
        made.append(one)
        return one

    # An epoch is a snapshot and a restore here.
    run_state_machine_as_test(
        machine_over(new),
        settings=settings(max_examples=2, stateful_step_count=15, deadline=None),
    )
