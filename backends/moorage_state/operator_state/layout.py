"""Where operator state and raw state lie in a range's database.

Layout of stored keys, beside those of `moorage_state.keys`::

    first key group of the subtask (2) | 0x10 | state id (4) | epoch (8) | ordinal (4)    lists
    first key group of the subtask (2) | 0x10 | state id (4) | map key                    broadcast
    key group (2) | 0x05 | number of the piece (4)                                        raw keyed

An operator state lies under the first key group of the range of its subtask, so that it moves with
that key group, and what a subtask had is found again whatever the ranges are afterwards. The
stream of a key group is cut into pieces of at most `PIECE_BYTES`; raw operator streams are the
elements of a list.
"""

from moorage_state.keylayout import encode_time, prefix_end, state_id

RAW_KEYED_STATE = 0x05
OPERATOR_STATE = 0x10

PIECE_BYTES = 1 << 20

_ORDINAL_BYTES = 4


def operator_prefix(first_group: int) -> bytes:
    """What all operator state of the subtask with this first key group starts with."""
    return first_group.to_bytes(2, "big") + bytes([OPERATOR_STATE])


def operator_section(first_group: int) -> tuple[bytes, bytes]:
    """The keys of all operator state of a subtask: the first, and the first after them."""
    prefix = operator_prefix(first_group)
    return prefix, prefix_end(prefix)


def state_prefix(first_group: int, name: str) -> bytes:
    """What the stored keys of one operator state of a subtask start with."""
    return operator_prefix(first_group) + state_id(name)


def position(epoch: int, ordinal: int) -> bytes:
    """The end of the stored key of a list's element; sorts as elements were added."""
    return encode_time(epoch) + ordinal.to_bytes(_ORDINAL_BYTES, "big")


def element_key(prefix: bytes, epoch: int, ordinal: int) -> bytes:
    """The stored key of an element of the list state that `state_prefix` gave `prefix` for."""
    return prefix + position(epoch, ordinal)


def raw_prefix(key_group: int) -> bytes:
    """What the stored pieces of the raw stream of a key group start with."""
    return key_group.to_bytes(2, "big") + bytes([RAW_KEYED_STATE])


def piece_key(key_group: int, number: int) -> bytes:
    """The stored key of a piece of the raw stream of a key group."""
    return raw_prefix(key_group) + number.to_bytes(_ORDINAL_BYTES, "big")


def stream_pieces(stream: bytes) -> list[bytes]:
    """A stream as it is stored; one that is empty is one empty piece, so that it exists."""
    return [stream[at : at + PIECE_BYTES] for at in range(0, max(1, len(stream)), PIECE_BYTES)]
