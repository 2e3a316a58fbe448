"""Raw state: streams of key groups and of the operator."""

import pytest

from moorage_state.operator_state import layout


def write_keyed(streams):
    def work(subtask, _):
        out = subtask.raw.keyed_output()
        for group in out.get_key_group_list():
            if group in streams:
                out.start_new_key_group(group)
                assert out.write(streams[group][:1]) == len(streams[group][:1])
                out.write(memoryview(streams[group][1:]))

    return work


def read_keyed(subtask, _):
    return {p.get_key_group_id(): p.get_stream().read() for p in subtask.raw.keyed_inputs()}


def read_operator(subtask, _):
    return [p.get_stream().read() for p in subtask.raw.operator_inputs()]


def write_operator(*partitions):
    def work(subtask, n):
        out = subtask.raw.operator_output()
        for partition in partitions:
            out.start_new_partition()
            out.write(f"{n}{partition}".encode())
        assert len(out.streams()) == len(partitions)

    return work


def test_each_subtask_reads_the_streams_of_its_key_groups(world):
    world.run(write_keyed({0: b"zero", 5: b"five", 6: b"", 11: b"eleven"}))
    assert world.run(read_keyed) == [{0: b"zero", 5: b"five"}, {6: b"", 11: b"eleven"}]


def test_streams_of_key_groups_move_with_them(world):
    world.run(write_keyed({0: b"a", 5: b"b", 6: b"c", 11: b"d"}))
    world.rescale(3)
    assert world.run(read_keyed) == [{0: b"a"}, {5: b"b", 6: b"c"}, {11: b"d"}]
    world.rescale(1)
    assert world.run(read_keyed) == [{0: b"a", 5: b"b", 6: b"c", 11: b"d"}]


def test_a_snapshot_replaces_all_streams_or_leaves_them_as_they_are(world):
    world.run(write_keyed({0: b"a", 5: b"b", 6: b"c"}))
    world.run(lambda *_: None)
    assert world.run(read_keyed) == [{0: b"a", 5: b"b"}, {6: b"c"}]
    world.run(write_keyed({5: b"new", 6: b"c"}))
    assert world.run(read_keyed) == [{5: b"new"}, {6: b"c"}]
    world.run(lambda subtask, _: subtask.raw.keyed_output())
    assert world.run(read_keyed) == [{}, {}]
    assert not world.entries


def test_streams_that_did_not_change_are_not_written_again(world):
    world.run(write_keyed({0: b"a", 6: b"c"}))
    world.run(write_operator("x"))
    world.run(write_keyed({0: b"a", 6: b"c"}))
    assert world.frames == []
    world.run(write_operator("x"))
    assert world.frames == []


def test_a_long_stream_is_kept_in_pieces(world, monkeypatch):
    monkeypatch.setattr(layout, "PIECE_BYTES", 4)
    stream = bytes(range(256))
    world.run(write_keyed({3: stream}))
    assert len(world.entries) == 64
    assert world.run(read_keyed)[0] == {3: stream}
    world.run(write_keyed({3: b"short"}))
    assert world.run(read_keyed)[0] == {3: b"short"}


def test_a_stream_belongs_to_a_key_group_of_the_subtask_and_is_one(world):
    def work(subtask, n):
        out = subtask.raw.keyed_output()
        with pytest.raises(ValueError, match="start_new_key_group"):
            out.write(b"x")
        with pytest.raises(ValueError, match=r"key_group=\d+ range="):
            out.start_new_key_group(11 if n == 0 else 0)
        first = out.get_key_group_list()[0]
        out.start_new_key_group(first)
        with pytest.raises(ValueError, match="began before"):
            out.start_new_key_group(first)

    world.run(work)


def test_streams_of_the_operator_are_split_evenly(world):
    world.run(write_operator("a", "b", "c"))
    assert world.run(read_operator) == [[b"0a", b"0b", b"0c"], [b"1a", b"1b", b"1c"]]
    world.rescale(4)
    assert world.run(read_operator) == [[b"0a", b"0b"], [b"0c", b"1a"], [b"1b"], [b"1c"]]
    world.rescale(1)
    assert world.run(read_operator) == [[b"0a", b"0b", b"0c", b"1a", b"1b", b"1c"]]


def test_a_partition_need_not_be_begun_and_providers_give_new_streams(world):
    world.run(lambda subtask, _: subtask.raw.operator_output().write(b"xyz"))

    def work(subtask, _):
        (provider,) = subtask.raw.operator_inputs()
        return provider.get_stream().read(1) + provider.get_stream().read()

    assert world.run(work) == [b"xxyz"] * 2
