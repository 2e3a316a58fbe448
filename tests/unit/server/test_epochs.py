"""The two-phase epoch, the same in this process and over a socket."""

import pytest

from moorage_state.deltas import encode_frame
from moorage_state.errors import Bug, Retryable, StaleLease, UserError, VersionGone, VersionMismatch
from moorage_state.server import RangeSpec, Version, open_range


@pytest.fixture
def op(api, drive):
    driven = drive(api)
    driven.open()
    yield driven
    api.release_range(driven.lease)


def test_a_new_range_is_empty_at_version_zero(api, drive):
    op = drive(api)
    result = op.open()
    assert (result.version, result.source) == ((0, ""), "empty")
    assert op.read() == {}


def test_a_range_without_base_may_begin_at_a_later_epoch(api, drive):
    op = drive(api)
    result = api.open_range(op.spec, op.run, None, [], op.url, 41)
    assert result.version == (41, "")


def test_what_an_epoch_wrote_is_read_at_its_version(op, key):
    op.epoch({key(1, 1): b"one", key(2, 1): b"two"})
    op.epoch({key(1, 1): None, key(63, 9): b""})
    assert op.read() == {key(2, 1): b"two", key(63, 9): b""}


def test_values_come_in_the_order_of_the_keys_asked_for(op, key):
    op.epoch({key(1, n): str(n).encode() for n in range(10)})
    asked = [key(1, 7), key(1, 99), key(1, 2), key(1, 7)]
    assert op.range.get_many(op.version, asked) == [b"7", None, b"2", b"7"]


def test_more_keys_than_a_slice_of_the_lookup_are_found(op, key):
    writes = {key(n % 64, n): str(n).encode() for n in range(10_000)}
    op.epoch(writes)
    assert op.range.get_many(op.version, sorted(writes)) == [writes[k] for k in sorted(writes)]


def test_ranges_of_a_frame_are_deleted_before_its_keys_are_put(op, key):
    op.epoch({key(1, n): b"old" for n in range(5)})
    op.epoch({key(1, 2): b"new"}, ranges=[(key(1, 0), key(1, 4))])
    assert op.read() == {key(1, 2): b"new", key(1, 4): b"old"}


def test_a_later_frame_of_an_epoch_wins(op, key):
    frames = [
        encode_frame([], [key(1, 1), key(1, 2)], [b"first", b"first"]),
        encode_frame([(key(1, 1), key(1, 2))], [key(1, 2)], [b"second"]),
    ]
    for seq, frame in enumerate(frames):
        op.range.stage(1, "a", frame, seq)
    op.commit(op.range.prepare(1, "a", "", 2))
    assert op.read() == {key(1, 2): b"second"}


def test_a_prepared_delta_changes_nothing_until_it_is_committed(op, key):
    op.prepare({key(1, 1): b"x"})
    assert op.read() == {}


def test_an_epoch_without_writes_makes_a_version_too(op):
    prepared = op.range.prepare(1, "a", "", 0)
    assert prepared.operations == 0
    assert op.commit(prepared) == (1, prepared.digest)
    assert op.read() == {}


def test_the_digest_does_not_depend_on_the_attempt(op, key):
    first = op.prepare({key(1, 1): b"x"}, attempt="a1")
    second = op.prepare({key(1, 1): b"x"}, attempt="a2")
    assert first == second
    op.commit(second)
    assert op.read() == {key(1, 1): b"x"}


def test_aborting_one_of_two_twins_keeps_the_delta(op, key):
    prepared = op.prepare({key(1, 1): b"x"}, attempt="a1")
    op.prepare({key(1, 1): b"x"}, attempt="a2")
    op.range.abort(1, "a1")
    op.commit(prepared)
    assert op.read() == {key(1, 1): b"x"}


def test_an_aborted_delta_cannot_be_committed(op, key):
    prepared = op.prepare({key(1, 1): b"x"})
    op.range.abort(1, "a")
    op.range.abort(1, "a")
    with pytest.raises(VersionGone, match="not on this volume"):
        op.range.commit(1, prepared.digest)


def test_an_attempt_aborted_while_it_is_staged_cannot_be_prepared(op, key):
    op.range.stage(1, "a", encode_frame([], [key(1, 1)], [b"x"]), 0)
    op.range.abort(1, "a")
    with pytest.raises(Retryable):
        op.range.prepare(1, "a", "", 1)


def test_preparing_and_committing_again_is_harmless(op, key):
    prepared = op.prepare({key(1, 1): b"x"})
    assert op.range.prepare(1, "a", "", 1) == prepared
    op.commit(prepared)
    op.range.commit(1, prepared.digest)
    op.epoch({key(1, 2): b"y"})
    op.range.commit(1, prepared.digest)
    assert op.read() == {key(1, 1): b"x", key(1, 2): b"y"}


def test_two_different_deltas_for_one_epoch_are_never_both_committed(op, key):
    one = op.prepare({key(1, 1): b"x"}, attempt="a1")
    other = op.prepare({key(1, 1): b"y"}, attempt="a2")
    op.commit(one)
    with pytest.raises(Bug, match="two different deltas"):
        op.range.commit(1, other.digest)
    assert op.read() == {key(1, 1): b"x"}


def test_an_accepted_commit_is_applied_by_the_next_read(op, key):
    for number in range(20):
        op.epoch({key(1, number): b"x"})
        assert len(op.read()) == number + 1


def test_commit_with_wait_applies_before_it_returns(op, key):
    version = op.commit(op.prepare({key(1, 1): b"x"}), wait=True)
    assert [s.version for s in op.api.stats() if s.uid == op.spec.uid] == [version]


@pytest.mark.parametrize("asked", [Version(0, ""), Version(2, "ab"), Version(1, "cd")])
def test_a_read_at_another_version_is_refused(op, key, asked):
    op.epoch({key(1, 1): b"x"})
    with pytest.raises(VersionMismatch, match="start the epoch again"):
        op.range.get_many(asked, [key(1, 1)])


def test_an_attempt_made_for_another_parent_is_refused(op, key):
    op.epoch({key(1, 1): b"x"})
    with pytest.raises(VersionMismatch, match="moved on"):
        op.range.prepare(2, "a", "0" * 32, 0)


def test_a_delta_prepared_before_another_commit_is_not_applied_after_it(op, key):
    late = op.prepare({key(1, 1): b"late"}, attempt="late", epoch=2)
    op.epoch({key(1, 1): b"x"})
    with pytest.raises(VersionMismatch, match="does not continue"):
        op.range.commit(2, late.digest)


def test_an_epoch_that_is_over_takes_no_more_writes(op, key):
    op.epoch({key(1, 1): b"x"})
    with pytest.raises(VersionMismatch, match="not after"):
        op.range.prepare(1, "late", "", 0)


def test_lost_frames_are_noticed(op, key):
    op.range.stage(1, "a", encode_frame([], [key(1, 1)], [b"x"]), 0)
    with pytest.raises(Retryable, match="not all staged frames"):
        op.range.prepare(1, "a", "", 2)
    with pytest.raises(Retryable, match="not here"):
        op.range.prepare(1, "b", "", 1)


def stage_and_prepare(op, attempt, frame, seq=0):
    """An error of staging comes at once in process, and when preparing over a socket."""
    op.range.stage(1, attempt, frame, seq)
    op.range.prepare(1, attempt, "", 1)


def bad_frames(key):
    return {
        "not a frame": b"\x93\x90\x90",
        "uneven": encode_frame([], [key(1, 1)], []),
        "above the range": encode_frame([], [key(64, 1)], [b"x"]),
        "shorter than a key group": encode_frame([], [b"\x00"], [b"x"]),
        "server's own key": encode_frame([], [b"\xff\xffversion"], [b"x"]),
        "range beyond the end": encode_frame([(key(1, 1), key(64, 1))], [], []),
    }


@pytest.mark.parametrize("what", bad_frames(lambda *_: b""))
def test_a_frame_that_must_not_be_written_is_refused(op, key, what):
    with pytest.raises(Bug):
        stage_and_prepare(op, "a", bad_frames(key)[what])
    assert op.epoch({key(1, 1): b"x"})
    assert op.read() == {key(1, 1): b"x"}


def test_frames_out_of_order_are_refused(op, key):
    frame = encode_frame([], [key(1, 1)], [b"x"])
    op.range.stage(1, "a", frame, 0)
    with pytest.raises(Bug, match="out of order"):
        stage_and_prepare(op, "a", frame, seq=2)


def test_an_attempts_name_cannot_leave_the_directory(op, key):
    with pytest.raises(Bug, match="name of an attempt"):
        stage_and_prepare(op, "../a", encode_frame([], [key(1, 1)], [b"x"]))


def test_a_newer_run_shuts_an_older_one_out_for_good(api, drive, key):
    old = drive(api, run="f1r0")
    old.open()
    new = drive(api, run="f2r0")
    new.open()
    with pytest.raises(StaleLease, match="holder=f2r0"):
        old.read()
    with pytest.raises(StaleLease):
        old.prepare({key(1, 1): b"x"})
    with pytest.raises(StaleLease, match="newer run"):
        old.open()
    new.epoch({key(1, 1): b"y"})
    assert new.read() == {key(1, 1): b"y"}
    api.release_range(new.lease)
    with pytest.raises(StaleLease, match="newer run"):
        old.open()


def test_a_run_takes_over_the_ranges_of_another_parallelism(api, drive):
    whole = drive(api, 0, 63, run="f1r0")
    whole.open()
    half = drive(api, 32, 63, run="f1r1")
    half.open()
    with pytest.raises(StaleLease):
        whole.read()


def test_run_tokens_are_ordered_as_numbers(api, drive):
    drive(api, run="f9r9").open()
    drive(api, run="f10r0").open()
    with pytest.raises(StaleLease):
        drive(api, run="f9r10").open()


def test_a_released_range_must_be_opened_again(op, key):
    op.epoch({key(1, 1): b"x"})
    op.api.release_range(op.lease)
    op.api.release_range(op.lease)
    with pytest.raises(StaleLease, match="open it"):
        op.read()
    assert op.open().source == "empty"
    assert op.read() == {key(1, 1): b"x"}


def test_opening_a_range_that_is_already_there_costs_nothing(op, key):
    op.epoch({key(1, 1): b"x"})
    assert op.open().source == "live"
    assert op.read() == {key(1, 1): b"x"}


def test_stats_tell_version_and_size(op, key):
    version = op.commit(op.prepare({key(1, n): bytes(100) for n in range(2000)}), wait=True)
    (stats,) = (s for s in op.api.stats() if s.uid == op.spec.uid)
    assert (stats.version, stats.error, stats.run) == (version, "", op.run)
    assert stats.size_bytes > 200_000
    known = stats.properties.get("estimate-num-keys") or stats.properties["entries"]
    assert known >= 2000


def test_a_store_that_cannot_be_is_the_users_error(api, drive):
    op = drive(api)
    op.open()
    api.range(op.lease).snapshot(1, op.version)
    op.url = "gopher://x"
    with pytest.raises(UserError):
        op.upload(1)


def test_two_operators_do_not_see_each_other(api, drive, key):
    one, other = drive(api), drive(api)
    other.spec = RangeSpec(one.spec.uid + "-b", 0, 63)
    for op, value in ((one, b"1"), (other, b"2")):
        op.open()
        op.epoch({key(1, 1): value})
    assert (one.read(), other.read()) == ({key(1, 1): b"1"}, {key(1, 1): b"2"})


def test_an_attempts_name_used_again_makes_a_new_delta(op, key):
    first = op.prepare({key(1, 1): b"x"})
    second = op.prepare({key(1, 1): b"y"})
    assert first.digest != second.digest
    op.commit(second)
    assert op.read() == {key(1, 1): b"y"}


@pytest.fixture
def in_parts(monkeypatch, host, drive):
    """A range whose every delta is too large to be held."""
    monkeypatch.setattr(open_range, "_HELD_BYTES", -1)
    op = drive(host)
    op.open()
    return op


def test_a_delta_that_is_applied_in_parts_writes_what_it_would_at_once(in_parts, key):
    in_parts.epoch({key(1, n): b"old" for n in range(4)})
    frames = [
        encode_frame([(key(1, 0), key(1, 3))], [key(1, 1), key(2, 2)], [b"a" * 3_000_000, b"b"]),
        encode_frame([], [key(1, 9)], [b"c" * 3_000_000]),
        encode_frame([(key(2, 0), key(2, 9))], [key(1, 1), key(3, 3)], [None, b"d"]),
    ]
    for seq, frame in enumerate(frames):
        in_parts.range.stage(2, "a", frame, seq)
    made = in_parts.range.prepare(2, "a", in_parts.version.digest, len(frames))
    in_parts.commit(made, wait=True)
    assert in_parts.read() == {key(1, 3): b"old", key(1, 9): b"c" * 3_000_000, key(3, 3): b"d"}


def test_of_a_large_delta_that_is_damaged_at_its_end_nothing_is_written(
    in_parts, host, key, monkeypatch
):
    in_parts.commit(in_parts.prepare({key(1, 1): b"old"}), wait=True)
    made = in_parts.prepare({key(1, 1): b"new"})
    held = host._leases.get(in_parts.lease)
    path = held._spool.path(Version(2, made.digest))
    path.write_bytes(path.read_bytes()[:-1])
    written: list[object] = []
    monkeypatch.setattr(held._database, "apply", lambda *given, **_: written.append(given))
    with pytest.raises(VersionGone, match="delta is damaged"):
        in_parts.commit(made, wait=True)
    assert written == []
