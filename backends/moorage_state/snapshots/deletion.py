"""Which shared objects go with checkpoints that go, by what the roots say was added and lost.

An object is referenced by checkpoints that hang together in the tree in which each hangs below the
one it was built on: an upload references what it wrote itself or what its base references. Decides
only where that tells everything; a pure function. See docs/adr/0024-manifests-in-parts.md.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from moorage_state.snapshots.manifest import Root, SnapshotRoot

_Keys = frozenset[str]


@dataclass(frozen=True, slots=True)
class _Tree:
    """The checkpoints that are there, by what they were built on.

    Attributes:
        children: by checkpoint, those that were built on it.
        leading: those that are kept, and those that one which is kept hangs below.
    """

    roots: Mapping[int, Root]
    kept: Collection[int]
    children: Mapping[int, list[int]]
    leading: frozenset[int]

    def added(self, checkpoint_id: int) -> _Keys:
        """Shared objects that it was the first to reference."""
        return self.roots[checkpoint_id].added

    def lost(self, checkpoint_id: int) -> _Keys:
        """Those that its base references, and it does not."""
        return self.roots[checkpoint_id].lost

    def going_with(self, top: int) -> list[int]:
        """One that goes, and those below it that go without one between them that is kept."""
        found = [top]
        for one in found:
            found += [c for c in self.children.get(one, []) if c not in self.kept]
        return found

    def unneeded(self, going: Iterable[int]) -> dict[int, _Keys]:
        """By checkpoint: of what it and those below it reference, what none of these needs.

        Of those that lead to one that is kept.
        """
        found: dict[int, _Keys] = {}
        # A base has a lower id than what is built on it.
        for one in sorted(self.leading & frozenset(going), reverse=True):
            below = [child for child in self.children[one] if child in self.leading]
            sets = [self.lost(child) | found.get(child, frozenset()) for child in below]
            found[one] = sets[0].intersection(*sets[1:])
        return found


class Garbage(NamedTuple):
    """Shared objects that go.

    Attributes:
        keys: those that lists name.
        whole: checkpoints of which all that they reference goes, as their parts name it.
    """

    keys: _Keys
    whole: frozenset[int]


def garbage_of(roots: Mapping[int, SnapshotRoot], kept: Collection[int]) -> Garbage | None:
    """Return the shared objects that only checkpoints that go reference; None if no list tells.

    What lists say another part may reference is not among them: that is a sweep's.

    Args:
        roots: all checkpoints that are there, those that go and those that are `kept`.
    """
    tree = _tree(roots, kept)
    if tree is None:
        return None
    garbage: set[str] = set()
    whole: set[int] = set()
    for top, root in tree.roots.items():
        base = root.base_id
        if top in kept or (base in tree.roots and base not in kept):
            continue
        if top not in tree.leading and base not in kept:
            if base:
                # All of it goes, and what it references that was there before is in no list.
                return None
            # It wrote all that it references, and nobody else can have that but those below it: no
            # tree that was cut is there beside it.
            whole.add(top)
        going = tree.going_with(top)
        added = {one: tree.added(one) for one in going}
        unneeded = tree.unneeded(going)
        found = set(unneeded.get(top, ()))
        for one in going:
            # What it inherited, others that hang on its base may have as well.
            found |= unneeded[one] & added[one] if one in unneeded else added[one]
        if base in kept:
            found.intersection_update(frozenset().union(*added.values()))
        garbage |= found
    return Garbage(frozenset(garbage), frozenset(whole))


def _tree(roots: Mapping[int, SnapshotRoot], kept: Collection[int]) -> _Tree | None:
    """The tree, if it is one, and every change in it is listed."""
    known = {one: root for one, root in roots.items() if isinstance(root, Root)}
    if len(known) < len(roots):
        return None
    children: dict[int, list[int]] = defaultdict(list)
    cut, whole = 0, 0
    for one, root in known.items():
        if root.base_id in known:
            if not root.base_listed:
                return None
            children[root.base_id].append(one)
        elif root.base_id:
            cut += 1
        else:
            whole += 1
    # What hangs on something that is gone may share what that referenced: with another such, and
    # with a checkpoint that began with nothing, from which that may have come.
    if cut and cut + whole > 1:
        return None
    leading: set[int] = set()
    for one in kept:
        at = one
        while at in known and at not in leading:
            leading.add(at)
            at = known[at].base_id
    return _Tree(known, kept, children, frozenset(leading))
