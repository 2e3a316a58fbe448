"""Maps of a chunk's keys, for vectorized functions: entries of many keys in one request.

The same entries at the same places as a map state of one key has (`moorage_state.keyed.maps`). What
is put is kept until the rows of its key are done, so that it is read back meanwhile. Called by the
vectorized loop.
"""

from collections.abc import Sequence
from itertools import chain
from operator import add

from moorage_state.database import Scan
from moorage_state.keyed import KeyedStateStore
from moorage_state.keyed.scanning import pages

_SCAN_ENTRIES = 4096
_SCAN_BYTES = 16 << 20
_KEY_BYTES = 8
"""Of an entry's own key, which is a number."""

_Raws = dict[bytes, bytes | None]


class ChunkMaps:
    """The maps of one attempt; a map is named by its cell, what its entries' places begin with.

    A cell is a key's prefix and the state's id; behind it stands the entry's own key.
    """

    def __init__(self, store: KeyedStateStore) -> None:
        self._store = store
        # By place; None removes.
        self._put: _Raws = {}
        self._changed: set[bytes] = set()
        # What was put by cell, made of it when a changed map is read.
        self._by_cell: dict[bytes, _Raws] | None = None

    def get(self, cells: Sequence[bytes], keys: Sequence[bytes]) -> list[bytes | None]:
        """One entry of each of these maps, which may be the same; None where there is none."""
        places = list(map(add, cells, keys))
        raws = self._store.access.get_many(places) if places else []
        if put := self._put:
            return [put.get(place, raw) for place, raw in zip(places, raws, strict=True)]
        return raws

    def put(
        self, cells: Sequence[bytes], keys: Sequence[bytes], raws: Sequence[bytes | None]
    ) -> None:
        """Set one entry of each of these maps, which may be the same; None removes it."""
        self._put.update(zip(map(add, cells, keys), raws, strict=True))
        self._changed.update(cells)
        self._by_cell = None

    def entries(self, cells: Sequence[bytes]) -> tuple[list[int], list[bytes], list[bytes]]:
        """How many entries each map has; and of all, in the order of their keys, key and value."""
        scans: list[Scan] = []
        if cells:
            scans = self._store.access.scan_many(list(cells), _SCAN_ENTRIES, _SCAN_BYTES)
        for at, (cell, scan) in enumerate(zip(cells, scans, strict=True)):
            if not scan.complete or cell in self._changed:
                scans[at] = self._whole(cell, scan)
        return (
            [len(scan.keys) for scan in scans],
            [place[-_KEY_BYTES:] for scan in scans for place in scan.keys],
            list(chain.from_iterable(scan.values for scan in scans)),
        )

    def end(self, running: bytes = b"") -> None:
        """Write what was put into all maps but those of one key, whose rows may run on.

        Args:
            running: its prefix; empty for none.
        """
        put, waits = self._put, _Raws()
        if running:
            waits = {place: raw for place, raw in put.items() if place.startswith(running)}
            for place in waits:
                del put[place]
        self._store.write_many(list(put), list(put.values()))
        self._put, self._by_cell = waits, None
        self._changed = {place[:-_KEY_BYTES] for place in waits}

    def _whole(self, cell: bytes, scan: Scan) -> Scan:
        """All that a map has, what was put with it."""
        found: _Raws = dict(chain.from_iterable(pages(self._store, cell, scan)))
        if cell in self._changed:
            found.update(self._put_into(cell))
        there = [(place, raw) for place, raw in sorted(found.items()) if raw is not None]
        return Scan([place for place, _ in there], [raw for _, raw in there], complete=True)

    def _put_into(self, cell: bytes) -> _Raws:
        if self._by_cell is None:
            self._by_cell = {}
            for place, raw in self._put.items():
                self._by_cell.setdefault(place[:-_KEY_BYTES], {})[place] = raw
        return self._by_cell[cell]
