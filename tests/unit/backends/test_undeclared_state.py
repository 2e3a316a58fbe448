"""State that was restored and that the job does not ask for: carried along, and never loaded."""

import pickle
import sys
from datetime import timedelta
from typing import Any

import pytest

from moorage_state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from moorage_state.timetolive import StateTtlConfig

loaded: list[Any] = []


class Tattler:
    """Tells when it is loaded, and may refuse to be."""

    refuses = False

    def __init__(self, name):
        self.name = name

    def __eq__(self, other):
        return isinstance(other, Tattler) and self.name == other.name

    def __hash__(self):
        return hash(self.name)

    def __reduce__(self):
        return revive, (self.name,)


def revive(name):
    loaded.append(name)
    if Tattler.refuses:
        raise pickle.UnpicklingError(f"{name} is foreign here")
    return Tattler(name)


@pytest.fixture(autouse=True)
def _nothing_was_loaded(monkeypatch):
    loaded.clear()
    monkeypatch.setattr(Tattler, "refuses", False)


def states(ttl=None):
    return (
        ValueStateDescriptor("value", "pickle", ttl),
        ListStateDescriptor("items", "pickle", ttl),
        MapStateDescriptor("seen", "string", "pickle", ttl),
    )


def fill(op, ttl=None):
    value, items, seen = states(ttl)
    op.with_key("k")
    op.state(value).update(Tattler("v"))
    op.state(items).add_all([Tattler("a"), Tattler("b")])
    op.state(seen).put("x", Tattler("s"))
    op.with_key("another key")


def read(op, ttl=None):
    value, items, seen = states(ttl)
    op.with_key("k")
    return (
        op.state(value).value().name,
        [one.name for one in op.state(items).get()],
        {key: one.name for key, one in op.state(seen).items()},
    )


FILLED = ("v", ["a", "b"], {"x": "s"})
TTL = StateTtlConfig(timedelta(milliseconds=100))


@pytest.mark.parametrize("ttl", [None, TTL], ids=["forever", "for a time"])
@pytest.mark.parametrize("kind", ["checkpoint", "savepoint"])
def test_objects_that_nobody_asks_for_are_not_loaded_and_not_lost(
    op, options, kind, ttl, monkeypatch
):
    fill(op, ttl)
    handles = op.take(options[kind])
    loaded.clear()
    monkeypatch.setattr(Tattler, "refuses", True)
    for again in ("checkpoint", "savepoint"):
        op.restore(handles)
        op.with_key("k")
        op.state(ValueStateDescriptor("count", "long")).update(1)
        assert op.stored_entries() >= 5
        handles = op.take(options[again])
    assert loaded == []
    monkeypatch.setattr(Tattler, "refuses", False)
    op.restore(handles)
    assert read(op, ttl) == FILLED


def test_one_state_that_cannot_be_loaded_does_not_hurt_the_others(op, monkeypatch):
    fill(op)
    op.with_key("k")
    op.state(ValueStateDescriptor("count", "long")).update(7)
    handles = op.take()
    monkeypatch.setattr(Tattler, "refuses", True)
    op.restore(handles)
    op.with_key("k")
    assert op.state(ValueStateDescriptor("count", "long")).value() == 7


def test_a_state_of_which_one_object_cannot_be_loaded_stays_as_it_was(op, monkeypatch):
    fill(op)
    op.restore(op.take())

    def revive_first(name):
        if name == "b":
            raise pickle.UnpicklingError(f"{name} is foreign here")
        return Tattler(name)

    monkeypatch.setattr(sys.modules[__name__], "revive", revive_first)
    with pytest.raises(pickle.UnpicklingError, match="b is foreign"):
        read(op)
    handles = op.take()
    monkeypatch.undo()
    op.restore(handles)
    assert read(op) == FILLED


def test_state_that_is_declared_while_a_snapshot_is_written_is_in_it_as_it_was(op):
    fill(op)
    op.restore(op.take())
    (future,) = op.begin()
    assert read(op) == FILLED
    future.run()
    op.restore([future.result(0).handle])
    assert read(op) == FILLED


def test_state_that_expires_before_it_is_declared_is_swept_as_bytes(op):
    fill(op, TTL)
    handles = op.take()
    loaded.clear()
    op.restore(handles)
    op.now_ms += 1000
    op.with_key("another key")
    op.state(ValueStateDescriptor("count", "long", TTL))
    for n in range(20):
        op.with_key(f"other-{n}")
    assert op.stored_entries() == 0
    assert loaded == []
