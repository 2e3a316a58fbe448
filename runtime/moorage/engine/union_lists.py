"""Union lists of an operator as its subtasks read them: those of all subtasks together.

Decides who asks whom, so that an epoch costs as many messages as there are subtasks and not as many
as there are pairs of them. A subtask asks its own server. The first one there is told to bring the
list, and asks the server of subtask 0; the first one there is told the same, and asks every server
once. A list is brought again only under another version. Called by subtasks, at the first look at a
union list.
"""

from collections.abc import Callable, Sequence

import msgspec

from moorage.engine.range_access import LeasedRange
from moorage_state.database import Scan
from moorage_state.operator_state.layout import state_prefix
from moorage_state.server.exchange import Client, exchange
from moorage_state.server.operations import Call

_PAGE = 10_000

_Lists = dict[int, list[bytes]]
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Lists).decode


class UnionLists:
    """The union lists of one operator, for one attempt of one subtask.

    Args:
        version: what the lists are at the versions of `ranges`; another one whenever they differ.
        ranges: by subtask.
        connect: gives the client of a range's server.
    """

    def __init__(
        self,
        uid: str,
        version: str,
        ranges: Sequence[LeasedRange],
        subtask: int,
        connect: Callable[[LeasedRange], Client],
    ) -> None:
        self._uid = uid
        self._version = version
        self._ranges = ranges
        self._subtask = subtask
        self._connect = connect

    def read(self, name: str) -> _Lists:
        """By the first key group of each subtask, in their order, its elements as stored.

        Raises:
            VersionMismatch, StaleLease, Retryable, ...: as reads of ranges do.
        """
        own, first = self._ranges[self._subtask], self._ranges[0]
        asked = [own] if own.door == first.door else [own, first]
        return _decode(self._brought(asked, name))

    def _brought(self, servers: Sequence[LeasedRange], name: str) -> bytes:
        """What the first of these servers has, or else the next, or else all ranges."""
        if not servers:
            return _encode(self._gathered(name))
        client = self._connect(servers[0])
        found = client.union_list(self._uid, name, self._version)
        if found is None:
            # Whoever is told so and fails is followed by another one, after some seconds.
            found = self._brought(servers[1:], name)
            client.keep_union_list(self._uid, name, self._version, found)
        return found

    def _gathered(self, name: str) -> _Lists:
        """From all servers, with one message to each."""
        there: dict[str, list[LeasedRange]] = {}
        for leased in self._ranges:
            there.setdefault(leased.door.address, []).append(leased)
        clients = [self._connect(some[0]) for some in there.values()]
        calls = [[_first_page(leased, name) for leased in some] for some in there.values()]
        answers = exchange(dict(enumerate(zip(clients, calls, strict=True))))
        failed = next((a.error for a in answers.values() if a.error is not None), None)
        if failed is not None:
            raise failed
        lists = {
            leased.lease.start: self._whole(client, leased, name, scan)
            for number, (client, some) in enumerate(zip(clients, there.values(), strict=True))
            for leased, scan in zip(some, answers[number].results, strict=True)
        }
        # In one order, whichever server answers for which of them.
        return dict(sorted(lists.items()))

    def _whole(self, client: Client, leased: LeasedRange, name: str, scan: Scan) -> list[bytes]:
        """All elements of one range, of which `scan` has the first."""
        prefix, elements = state_prefix(leased.lease.start, name), scan.values
        while not scan.complete:
            after = scan.keys[-1]
            scan = client.range(leased.lease).scan_from(leased.version, prefix, after, _PAGE)
            elements = elements + scan.values
        return elements


def _first_page(leased: LeasedRange, name: str) -> Call:
    prefix = state_prefix(leased.lease.start, name)
    return Call("scan_from", (leased.version, prefix, b"", _PAGE), leased.lease)
