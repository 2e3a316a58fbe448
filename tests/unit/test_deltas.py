"""Delta files: what is written comes back, and nothing else ever does."""

import msgspec
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from moorage_state.deltas import (
    DeltaHeader,
    DeltaReader,
    DeltaWriter,
    decode_frame,
    delta_name,
    encode_frame,
    parse_delta_name,
)
from moorage_state.errors import Bug, CorruptState, LocalDiskError, UserError

HEADER = DeltaHeader("flights", 0, 63, "f3r0", 7, "0" * 32)
FRAMES = [
    ([(b"\0\1a", b"\0\1b")], [b"\0\1a", b"\0\2b"], [b"1", None]),
    ([], [], []),
    ([], [b"\0\3c"], [b""]),
]


def write(path, frames=FRAMES, header=HEADER):
    writer = DeltaWriter(path, header)
    for frame in frames:
        writer.append(encode_frame(*frame), len(frame[0]) + len(frame[1]))
    return writer.finish(sync=True)


def read(path):
    with DeltaReader(path) as reader:
        return reader.header, [tuple(frame) for frame in reader.frames()]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "some.delta"


def test_what_is_written_comes_back(path):
    summary = write(path)
    assert read(path) == (HEADER, FRAMES)
    assert (summary.frames, summary.operations) == (3, 4)
    assert summary.size == path.stat().st_size


def test_the_bytes_are_the_documented_ones(path):
    summary = write(path)
    data = path.read_bytes()
    assert data[:10] == b"MOORDLT\0" + b"\0\1"
    assert data[10:11] == b"H"
    length = int.from_bytes(data[11:15], "big")
    header = msgspec.msgpack.decode(data[15 : 15 + length])
    assert header == ["flights", 0, 63, "f3r0", 7, "0" * 32]
    payloads = [msgspec.msgpack.encode(frame) for frame in FRAMES]
    hashed = data[15 : 15 + length]
    hashed += b"".join(len(payload).to_bytes(8, "big") + payload for payload in payloads)
    assert summary.digest == xxhash.xxh3_128_hexdigest(hashed)
    first = 15 + length + 8
    block = b"F" + len(payloads[0]).to_bytes(4, "big") + payloads[0]
    block += xxhash.xxh3_64_digest(b"F" + payloads[0])
    assert data[first : first + len(block)] == block


def test_the_digest_depends_on_header_and_frames_only(tmp_path):
    same = [write(tmp_path / f"{n}.tmp").digest for n in range(2)]
    other_parent = DeltaHeader("flights", 0, 63, "f3r0", 7, "1" * 32)
    digests = {
        same[0],
        write(tmp_path / "b", header=other_parent).digest,
        write(tmp_path / "c", frames=FRAMES[::-1]).digest,
        write(tmp_path / "d", frames=[]).digest,
    }
    assert same[0] == same[1]
    assert len(digests) == 4


def test_every_flipped_bit_is_noticed(path):
    write(path)
    data = path.read_bytes()
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        with pytest.raises((CorruptState, UserError)) as caught:
            read(path)
        assert str(path) in str(caught.value)


def test_every_torn_file_is_noticed(path):
    write(path)
    data = path.read_bytes()
    for size in range(len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(CorruptState):
            read(path)


def test_bytes_after_the_end_are_noticed(path):
    write(path)
    with path.open("ab") as file:
        file.write(b"x")
    with pytest.raises(CorruptState, match="after the end"):
        read(path)


def test_a_file_under_the_name_of_another_is_noticed(tmp_path):
    path = tmp_path / "attempt.tmp"
    digest = write(path).digest
    wrong = tmp_path / delta_name(8, digest)
    right = tmp_path / delta_name(7, digest)
    right.write_bytes(path.read_bytes())
    wrong.write_bytes(path.read_bytes())
    assert read(right)[0] == HEADER
    with pytest.raises(CorruptState, match="do not match"):
        read(wrong)


def test_a_newer_format_is_refused_and_not_called_corrupt(path):
    write(path)
    data = bytearray(path.read_bytes())
    data[9] = 2
    path.write_bytes(data)
    with pytest.raises(UserError, match="newer moorage"):
        read(path)


@pytest.mark.parametrize("payload", [b"", b"\xc0", b"\x93\x90\x91\xa1a\x90", b"\x90"])
def test_a_payload_that_is_no_frame_is_refused(payload):
    with pytest.raises(Bug):
        decode_frame(payload)


def test_names_sort_by_epoch_and_come_apart_again():
    digest = "a" * 32
    assert delta_name(9, digest) < delta_name(10, digest)
    assert parse_delta_name(delta_name(10, digest)) == (10, digest)
    assert parse_delta_name("00000000000000000010-attempt.tmp") is None


def test_a_discarded_delta_leaves_no_file(path):
    writer = DeltaWriter(path, HEADER)
    writer.discard()
    assert not path.exists()


def test_a_directory_that_is_not_there_is_a_disk_error(tmp_path):
    with pytest.raises(LocalDiskError, match="could not create"):
        DeltaWriter(tmp_path / "missing" / "x", HEADER)


@given(
    ranges=st.lists(st.tuples(st.binary(), st.binary())),
    writes=st.lists(st.tuples(st.binary(), st.none() | st.binary())),
)
def test_any_frame_makes_the_round_trip(ranges, writes):
    keys, values = [k for k, _ in writes], [v for _, v in writes]
    frame = decode_frame(encode_frame(ranges, keys, values))
    assert tuple(frame) == (ranges, keys, values)
    assert frame.operations == len(ranges) + len(writes)
