"""What lists say may go is what no kept checkpoint references: held against a plain computation."""

from datetime import UTC, datetime
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st
from moorage_testing.manifests import checkpoint_fields

from moorage_state.snapshots import Manifest, PartEntry, Root
from moorage_state.snapshots.deletion import Garbage, garbage_of

AT = datetime(2026, 1, 2, tzinfo=UTC)


def root(number: int, base: int, added: set[str], lost: set[str], **changes: Any) -> Root:
    part = PartEntry(
        key=f"chk-{number}/f1r0/part-0",
        size=1,
        sha256="0" * 64,
        files=0,
        bytes_total=0,
        added=sorted(added) if base else [],
        lost=sorted(lost),
    )
    fields = checkpoint_fields("lineage", number)
    return Root(**{**fields, "parts": [part], "base_id": base, **changes})


class Lineage:
    """Checkpoints, each built on one of those that are there, and what each references."""

    def __init__(self) -> None:
        self.there: dict[int, Root] = {}
        self.references: dict[int, frozenset[str]] = {}

    def take(self, base: int, kept: set[str], fresh: int) -> None:
        number = len(self.references) + 1
        new = {f"shared/{number}-{n}" for n in range(fresh)}
        before = self.references.get(base, frozenset())
        now = frozenset(kept & before | new)
        self.references[number] = now
        self.there[number] = root(number, base, new, set(before - now))

    def named(self, garbage: Garbage) -> frozenset[str]:
        """What lists and parts tell may go."""
        return garbage.keys | self.needed(set(garbage.whole))

    def needed(self, kept: set[int]) -> frozenset[str]:
        return frozenset().union(*(self.references[one] for one in kept))


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_what_goes_is_all_that_only_those_that_go_reference(data: st.DataObject) -> None:
    lineage = Lineage()
    stored: set[str] = set()
    for _ in range(data.draw(st.integers(2, 9))):
        known = sorted(lineage.there)
        # Mostly the newest, as in a job; sometimes an older one, or none.
        base = data.draw(st.sampled_from([*known[-1:] * 4, *known, 0]))
        before = sorted(lineage.references.get(base, ()))
        chosen = data.draw(st.sets(st.sampled_from(before)) if before else st.just(set()))
        lineage.take(base, chosen, data.draw(st.integers(0, 2)))
        stored |= lineage.references[len(lineage.references)]
        if not data.draw(st.booleans()):
            continue
        newest = max(lineage.there)
        kept = data.draw(st.sets(st.sampled_from(sorted(lineage.there)))) | {newest}
        found = garbage_of(lineage.there, kept)
        going = set(lineage.there) - kept
        exact = lineage.needed(going) - lineage.needed(kept)
        event("unknown" if found is None else "whole" if found.whole else "listed")
        assert found is None or lineage.named(found) & stored == exact & stored
        stored -= exact
        lineage.there = {one: lineage.there[one] for one in kept}
    assert lineage.needed(set(lineage.there)) <= stored


def test_a_chain_is_always_listed_however_long() -> None:
    lineage = Lineage()
    for number in range(1500):
        lineage.take(number, {f"shared/{number}-0"}, 2)
    found = garbage_of(lineage.there, {1500})
    assert found is not None
    assert not found.whole
    assert found.keys == lineage.needed(set(range(1, 1500))) - lineage.needed({1500})


def test_lists_do_not_tell_of_one_document_nor_of_a_dropped_operator() -> None:
    lineage = Lineage()
    lineage.take(0, set(), 2)
    lineage.take(1, {"shared/1-0"}, 1)
    assert garbage_of(lineage.there, {2}) == (frozenset({"shared/1-1"}), frozenset())
    plain = Manifest(**checkpoint_fields("lineage", 1))
    assert garbage_of({**lineage.there, 1: plain}, {2}) is None
    dropped = root(2, 1, set(), set(), base_listed=False)
    assert garbage_of({**lineage.there, 2: dropped}, {2}) is None


def test_a_tree_that_was_cut_takes_nothing_from_the_checkpoint_it_came_from() -> None:
    """1, 2 and 3 in a row, 2 retired; 4 no longer has what 1 and 3 share."""
    lineage = Lineage()
    lineage.take(0, set(), 1)
    for base in (1, 2):
        lineage.take(base, {"shared/1-0"}, 1)
    del lineage.there[2]
    lineage.take(3, set(), 1)
    found = garbage_of(lineage.there, {1, 4})
    assert found is None or not lineage.named(found) & lineage.needed({1, 4})


def test_branches_after_rewinds_take_nothing_from_each_other() -> None:
    """1, 2, 3, back to 1, 4, 5 and 2 goes; back to 3, 6 and 1 goes, of which 4 lost something."""
    lineage = Lineage()
    lineage.take(0, set(), 1)
    lineage.take(1, {"shared/1-0"}, 1)
    lineage.take(2, {"shared/1-0"}, 1)
    lineage.take(1, set(), 1)
    lineage.take(4, set(), 1)
    del lineage.there[2]
    lineage.take(3, {"shared/1-0"}, 1)
    found = garbage_of(lineage.there, {3, 4, 5, 6})
    assert found is None or not lineage.named(found) & lineage.needed({3, 4, 5, 6})


def test_of_a_full_checkpoint_that_goes_with_all_below_it_the_parts_tell_what_goes() -> None:
    lineage = Lineage()
    for _ in range(3):
        lineage.take(0, set(), 2)
    lineage.take(2, {"shared/2-0"}, 1)
    found = garbage_of(lineage.there, {1, 3})
    assert found == (frozenset({"shared/4-0"}), frozenset({2}))
    assert not lineage.named(found) & lineage.needed({1, 3})


def test_a_full_checkpoint_beside_a_tree_that_was_cut_is_not_told_of() -> None:
    """1, 2 and 3 in a row, 2 retired: 3 may have what 1 wrote, which goes."""
    lineage = Lineage()
    lineage.take(0, set(), 2)
    lineage.take(1, {"shared/1-0"}, 1)
    lineage.take(2, {"shared/1-0"}, 1)
    del lineage.there[2]
    assert garbage_of(lineage.there, {3}) is None
