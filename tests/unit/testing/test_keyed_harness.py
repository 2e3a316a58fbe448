# ruff: noqa: ARG002  functions are written as people write them
"""The harness that people test their functions with: it runs what a job runs."""

import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

from moorage import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    OutputTag,
    ReducingStateDescriptor,
    Session,
    Tumbling,
    ValueStateDescriptor,
    count,
    sum_,
)
from moorage.testing import KeyedHarness
from moorage_state.errors import UserError
from moorage_state.keyed import TimeDomain

STREAM = "user string, n long, at long"
OUTPUT = "user string, total long"
ODD = OutputTag("odd", "user string, n long")


class Total(KeyedProcessFunction):
    """State of each kind, a timer of each kind, a side output."""

    def __init__(self, kind="long"):
        self.kind = kind

    def open(self, ctx):
        self.total = ctx.get_state(ValueStateDescriptor("total", self.kind))
        self.rows = ctx.get_list_state(ListStateDescriptor("rows", "long"))
        self.seen = ctx.get_map_state(MapStateDescriptor("seen", "long", "string"))
        self.most = ctx.get_reducing_state(ReducingStateDescriptor("most", "long", "max"))

    def process(self, row, ctx):
        total = (self.total.value() or 0) + row.n
        self.total.update(total)
        self.rows.add(row.n)
        self.seen.put(row.n, row.user)
        self.most.add(row.n)
        timers = ctx.timer_service()
        timers.register_event_time_timer(row.at + 10)
        timers.register_processing_time_timer(timers.current_processing_time() + 1_000)
        if row.n % 2:
            yield ODD, (ctx.key, row.n)
        yield ctx.key, total

    def on_timer(self, timestamp, ctx):
        sign = -1 if ctx.time_domain() is TimeDomain.EVENT_TIME else -2
        yield ctx.key, sign


@pytest.fixture
def harness():
    made = []

    def make(function=None, **options):
        options = {"event_time": "at", "side_outputs": [ODD]} | options
        made.append(KeyedHarness(function or Total(), STREAM, "user", OUTPUT, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_rows_state_of_each_kind_timers_and_side_outputs_are_shown(harness):
    one = harness()
    assert one.process(("a", 1, 5), ("b", 2, 6), {"user": "a", "n": 3, "at": 7}) == [
        ("a", 1),
        ("a", 4),
        ("b", 2),
    ]
    assert one.output[1].total == 4
    assert one.side_output(ODD) == [("a", 1), ("a", 3)]
    assert sorted(one.keys()) == ["a", "b"]
    assert [one.state(name, "a") for name in ("total", "rows", "seen", "most")] == [
        4,
        [1, 3],
        {1: "a", 3: "a"},
        3,
    ]
    assert (one.state("total", "c"), one.state("rows", "c")) == (None, [])
    assert (one.timers("a"), one.num_timers()) == ([15, 17], 3)
    assert one.timers("a", TimeDomain.PROCESSING_TIME) == [1_000]


def test_timers_fire_when_time_has_come_so_far_and_not_before(harness):
    one = harness()
    one.process(("a", 2, 5), ("b", 2, 6))
    assert one.process_watermark(14) == []
    assert one.process_watermark(15) == [("a", -1)]
    assert one.current_watermark() == 15
    assert one.set_processing_time(999) == []
    assert sorted(one.set_processing_time(1_000)) == [("a", -2), ("b", -2)]
    assert one.end_input() == [("b", -1)]
    assert one.num_timers() == 0


def test_with_a_delay_the_watermark_follows_the_rows(harness):
    one = harness(max_delay="1ms")
    one.process(("a", 2, 5), ("b", 2, 5))
    # A key's own rows bring its time on at once; the others' comes with the next epoch.
    assert one.process(("a", 2, 100)) == [("a", -1), ("a", 4)]
    assert one.process() == [("b", -1)]
    with pytest.raises(UserError, match="max_delay"):
        one.process_watermark(1)


def test_a_snapshot_goes_on_elsewhere_with_as_many_subtasks_as_one_likes(harness):
    one = harness(parallelism=3)
    users = [f"u{n}" for n in range(20)]
    one.process(*[(user, 1, 1) for user in users])
    taken = one.snapshot()
    one.process(*[(user, 5, 2) for user in users])
    assert one.state("total", "u7") == 6
    one.restore(taken, parallelism=5)
    assert {one.state("total", user) for user in users} == {1}
    assert one.num_timers() == 20
    one.rescale(2)
    assert sorted(one.process(("u7", 1, 3), ("u8", 1, 3))) == [("u7", 2), ("u8", 2)]
    other = harness(restore=taken)
    assert sorted(other.keys()) == sorted(users)
    assert len(other.process_watermark(11)) == 20


def test_another_version_reads_what_the_one_before_wrote_or_is_refused(harness):
    one = harness(Total("int"))
    one.process(("a", 1, 1))
    one.upgrade(Total("long"))
    assert one.process(("a", 1 << 40, 1)) == [("a", (1 << 40) + 1)]
    with pytest.raises(UserError, match="total"):
        one.upgrade(Total("string"))


class Breaks(Total):
    def process(self, row, ctx):
        return [1 // row.n]


def test_what_a_function_raises_comes_as_it_is_with_its_key(harness):
    one = harness(Breaks())
    with pytest.raises(ZeroDivisionError) as caught:
        one.process(("a", 0, 1))
    assert "key='a'" in "".join(caught.value.__notes__)
    # As after a failure in a job, nothing of the epoch is there.
    assert one.keys() == []


class BreaksInItsTimer(Total):
    def on_timer(self, timestamp, ctx):
        raise ZeroDivisionError("broken")


def test_event_time_that_a_timer_fails_at_has_not_come(harness):
    one = harness(BreaksInItsTimer())
    one.process(("a", 1, 5))
    one.process_watermark(14)
    for come in (lambda: one.process_watermark(15), one.end_input):
        with pytest.raises(ZeroDivisionError):
            come()
    assert (one.current_watermark(), one.timers("a")) == (14, [15])
    assert one.process(("a", 1, 6)) == [("a", 2)]


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([("a", 1)], "columns"),
        ([{"user": "a", "m": 1}], "columns"),
        ([("a", "x", 1)], "column=n"),
        ([("a", 1 << 70, 1)], "column=n"),
    ],
)
def test_rows_that_are_none_of_the_stream_are_refused(harness, rows, says):
    with pytest.raises(UserError, match=says):
        harness().process(*rows)


def test_time_goes_forward_and_what_is_not_there_is_said(harness):
    one = harness(now_ms=10)
    one.process_watermark(5)
    with pytest.raises(UserError, match="does not go back"):
        one.process_watermark(4)
    with pytest.raises(UserError, match="does not go back"):
        one.set_processing_time(9)
    with pytest.raises(UserError, match="no such state"):
        one.state("other", "a")
    with pytest.raises(UserError, match="declared=\\['odd'\\]"):
        one.side_output("other")
    with pytest.raises(UserError, match="event_time"):
        harness(event_time=None).process_watermark(1)


def test_windows_are_tested_as_they_are_applied():
    def visits(stream):
        return stream.window(Session("10ms")).aggregate(uid="v", rows=count(), total=sum_("n"))

    with KeyedHarness(visits, STREAM, "user", event_time="at") as one:
        one.process(("a", 1, 0), ("a", 2, 5), ("b", 7, 100))
        (visit,) = one.process_watermark(50)
        assert (visit.user, visit.rows, visit.total) == ("a", 2, 3)
        assert [row.total for row in one.end_input()] == [7]

    with KeyedHarness(lambda stream: stream.count(uid="rows"), STREAM, "user") as one:
        assert one.process(("a", 1, 0)) == [("a", 1)]

    def two(stream):
        first = stream.window(Tumbling("1s")).aggregate(uid="w", rows=count())
        return first.key_by("user").process(Total(), uid="t", output=OUTPUT)

    with pytest.raises(UserError, match="one operator"):
        KeyedHarness(two, STREAM, "user", event_time="at")


def test_the_plugin_has_it_as_a_fixture(tmp_path):
    root = Path(__file__).parents[3]
    entry = tomllib.loads((root / "pyproject.toml").read_text())["project"]["entry-points"]
    assert entry["pytest11"] == {"moorage": "moorage.testing.plugin"}
    (tmp_path / "test_it.py").write_text(
        textwrap.dedent("""\
            import sys
            from moorage import KeyedProcessFunction

            class Same(KeyedProcessFunction):
                def process(self, row, ctx):
                    yield (ctx.key,)

            def test_it(keyed_harness):
                assert keyed_harness(Same(), "k long", "k", "k long").process((1,)) == [(1,)]
        """)
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "moorage.testing.plugin", str(tmp_path)]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", "--rootdir", str(tmp_path)],
        env={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr
