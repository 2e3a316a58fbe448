"""Lists of a chunk's keys in namespaces, for vectorized functions: many lists in one request.

The same elements at the same places as a list state of one key has (`moorage_state.keyed.lists`).
What is added is kept until the rows of its key are done, so that it is read back meanwhile. Called
by the vectorized loop.
"""

from collections.abc import Sequence
from itertools import chain

import numpy as np
import pyarrow as pa

from moorage_state.columnar import ColumnCodec
from moorage_state.database import Scan
from moorage_state.keyed import KeyedStateStore
from moorage_state.keyed.lists import element_places
from moorage_state.keyed.scanning import pages
from moorage_state.keylayout import prefix_end

_SCAN_ENTRIES = 4096
_SCAN_BYTES = 16 << 20


class ChunkLists:
    """The lists of one attempt; a list is named by its cell, what its elements' places begin with.

    A cell is a key's prefix, the state's id and the namespace.
    """

    def __init__(self, store: KeyedStateStore) -> None:
        self._store = store
        # In the order in which they came, as a frame has them; emptied before they are added to.
        self._added: dict[bytes, list[bytes]] = {}
        self._emptied: dict[bytes, None] = {}

    def get(self, cells: Sequence[bytes], codec: ColumnCodec) -> pa.ListArray:
        """The lists, what was added since with them."""
        found = [[*stored, *self._added.get(cell, ())] for cell, stored in self._stored(cells)]
        ends = np.cumsum([0, *map(len, found)])
        values = codec.decode(list(chain.from_iterable(found)))
        return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), values)

    def append(self, cells: Sequence[bytes], raws: Sequence[bytes]) -> None:
        """Add an element to each of these lists, which may be the same."""
        added = self._added
        for cell, raw in zip(cells, raws, strict=True):
            mine = added.get(cell)
            if mine is None:
                added[cell] = [raw]
            else:
                mine.append(raw)

    def clear(self, cells: Sequence[bytes]) -> None:
        """Empty these lists."""
        for cell in cells:
            self._added.pop(cell, None)
            self._emptied[cell] = None

    def end(self, running: bytes = b"") -> None:
        """Write what was done to all lists but those of one key, whose rows may run on.

        Args:
            running: its prefix; empty for none.
        """
        if not self._added and not self._emptied:
            return
        store, added, emptied = self._store, self._added, self._emptied
        self._added, self._emptied = {}, {}
        for cell in emptied:
            if running and cell.startswith(running):
                self._emptied[cell] = None
            else:
                store.delete_range(cell, prefix_end(cell))
        places: list[bytes] = []
        raws: list[bytes | None] = []
        for cell, mine in added.items():
            if running and cell.startswith(running):
                self._added[cell] = mine
            else:
                places += element_places(store, cell, len(mine))
                raws += mine
        store.write_many(places, raws)

    def _stored(self, cells: Sequence[bytes]) -> "list[tuple[bytes, list[bytes]]]":
        """Each list as the epoch found it, or emptied it."""
        asked = [cell for cell in cells if cell not in self._emptied]
        scans: dict[bytes, Scan] = {}
        if asked:
            many = self._store.access.scan_many(asked, _SCAN_ENTRIES, _SCAN_BYTES)
            scans = dict(zip(asked, many, strict=True))
        return [(cell, self._values(cell, scans.get(cell))) for cell in cells]

    def _values(self, cell: bytes, scan: Scan | None) -> list[bytes]:
        if scan is None:
            return []
        if scan.complete:
            return list(scan.values)
        return [raw for page in pages(self._store, cell, scan) for _, raw in page]
