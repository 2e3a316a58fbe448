"""Flink's operator ids: what a uid is called where 128 bits stand for it.

MurmurHash3 x64 128 with seed 0 over the uid in UTF-8, as Flink gives it in its own snapshots,
metrics and REST answers. Manifests name operators by uid; the id is for whoever compares the two.
Pure.
"""

_MASK = (1 << 64) - 1
_C1 = 0x87C37B91114253D5
_C2 = 0x4CF5AD432745937F
_BLOCK = 16


def operator_id(uid: str) -> str:
    """The id that Flink derives from a uid: 32 hexadecimal digits."""
    data = uid.encode()
    h1 = h2 = 0
    whole = len(data) - len(data) % _BLOCK
    for at in range(0, whole, _BLOCK):
        k1 = int.from_bytes(data[at : at + 8], "little")
        k2 = int.from_bytes(data[at + 8 : at + _BLOCK], "little")
        h1 = (_rotated((h1 ^ _mixed1(k1)), 27) + h2) * 5 + 0x52DCE729 & _MASK
        h2 = (_rotated((h2 ^ _mixed2(k2)), 31) + h1) * 5 + 0x38495AB5 & _MASK
    tail = data[whole:]
    h2 ^= _mixed2(int.from_bytes(tail[8:], "little"))
    h1 ^= _mixed1(int.from_bytes(tail[:8], "little"))
    h1, h2 = h1 ^ len(data), h2 ^ len(data)
    h1 = h1 + h2 & _MASK
    h2 = h2 + h1 & _MASK
    h1, h2 = _avalanched(h1), _avalanched(h2)
    h1 = h1 + h2 & _MASK
    h2 = h2 + h1 & _MASK
    return (h1.to_bytes(8, "little") + h2.to_bytes(8, "little")).hex()


def _mixed1(block: int) -> int:
    return _rotated(block * _C1 & _MASK, 31) * _C2 & _MASK


def _mixed2(block: int) -> int:
    return _rotated(block * _C2 & _MASK, 33) * _C1 & _MASK


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> (64 - bits)) & _MASK


def _avalanched(word: int) -> int:
    word = (word ^ word >> 33) * 0xFF51AFD7ED558CCD & _MASK
    word = (word ^ word >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return word ^ word >> 33
