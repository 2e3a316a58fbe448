"""`KeyedHarness` over two streams."""

from typing import Any, Literal

import pytest
from moorage_testing.two_inputs import ODD, ORDERS, SEEN, SHIPS, Tell, order, ship

from moorage.api.functions import NO_WATERMARK
from moorage.testing import KeyedHarness, NotDeterministic, SecondStream
from moorage_state.errors import UserError

Stream = Literal["both", "first", "second"]


def test_rows_of_both_streams_are_fed_snapshot_restored_and_replayed():
    second = SecondStream(SHIPS, "order", "at")
    with KeyedHarness(
        Tell(), ORDERS, "id", SEEN, event_time="at", second=second, side_outputs=[ODD]
    ) as tell:
        made = tell.process(order("a", 30), second=[ship("a", 20), ship("b", 1)])
        assert sorted((row.key, row.side, row.n) for row in made) == [
            ("a", 1, 2),
            ("a", 2, 1),
            ("b", 2, 1),
        ]
        assert tell.timers("a") == [30]
        snapshot = tell.snapshot()
        assert [row.n for row in tell.process(second=[ship("a", 25)])] == [3]
        tell.restore(snapshot, parallelism=3)
        assert [row.n for row in tell.process(second=[ship("a", 26)])] == [3]
        due = tell.process_watermark(30)
        assert sorted((row.key, row.at) for row in due) == [("a", 30), ("b", 11)]
        made = tell.crash_and_replay(order("b", 40), second=[ship("b", 50), ship("a", 60)])
        assert sorted((row.key, row.n) for row in made) == [("a", 5), ("b", 3), ("b", 4)]
        assert tell.side_output(ODD) == [("b", 3)]


class Forgetful(Tell):
    """Keeps in itself what belongs into state."""

    seen = 0

    def process_element2(self, row, ctx):
        self.seen += 1
        yield ctx.key, 2, row.at, self.seen, 0


def test_what_is_not_deterministic_in_either_stream_is_found():
    second = SecondStream(SHIPS, "order", "at")
    with (
        KeyedHarness(
            Forgetful(), ORDERS, "id", SEEN, event_time="at", second=second, side_outputs=[ODD]
        ) as tell,
        pytest.raises(NotDeterministic),
    ):
        tell.crash_and_replay(second=[ship("a", 1), ship("a", 2)])


def test_rows_for_a_second_stream_that_there_is_not_are_refused():
    with (
        KeyedHarness(lambda s: s.count(uid="n"), ORDERS, "id") as counts,
        pytest.raises(UserError, match=r"second=SecondStream\(DDL, key_by\)"),
    ):
        counts.process(second=[ship("a", 1)])


def test_each_stream_has_a_watermark_and_the_slower_one_counts():
    second = SecondStream(SHIPS, "order", "at")
    with KeyedHarness(
        Tell(), ORDERS, "id", SEEN, event_time="at", second=second, side_outputs=[ODD]
    ) as tell:
        tell.process(order("a", 30), second=[ship("a", 20)])
        assert tell.process_watermark(50, stream="first") == []
        assert tell.current_watermark() == NO_WATERMARK
        assert tell.process_watermark(20, stream="second") == []
        assert tell.current_watermark() == 20
        snapshot = tell.snapshot()
        assert [row.at for row in tell.process_watermark(40, stream="second")] == [30]
        assert tell.current_watermark() == 40
        behind: list[tuple[Stream, int]] = [("second", 39), ("first", 49), ("both", 49)]
        for stream, given in behind:
            with pytest.raises(UserError, match=f"does not go back: given={given}"):
                tell.process_watermark(given, stream=stream)
        tell.restore(snapshot)
        assert tell.current_watermark() == 20
        assert [row.at for row in tell.process_watermark(60)] == [30]
        tell.end_input()
        with pytest.raises(UserError, match="does not go back"):
            tell.process_watermark(70, stream="second")


def test_a_watermark_of_a_stream_that_has_no_event_time_is_refused():
    def counted(stream):
        return stream.count(uid="n")

    timeless = SecondStream(SHIPS, "order")
    with KeyedHarness(counted, ORDERS, "id", event_time="at") as counts:
        strange: Any = "third"
        streams: list[Stream] = ["second", "first", strange]
        for stream in streams:
            with pytest.raises(UserError, match="where both have event time"):
                counts.process_watermark(5, stream=stream)
    with KeyedHarness(
        Tell(), ORDERS, "id", SEEN, event_time="at", second=timeless, side_outputs=[ODD]
    ) as tell:
        with pytest.raises(UserError, match="where both have event time"):
            tell.process_watermark(5, stream="second")
        tell.process_watermark(5)
        assert tell.current_watermark() == 5
