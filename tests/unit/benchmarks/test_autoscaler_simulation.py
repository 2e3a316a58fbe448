"""The simulator's job and its peer; and what the autoscaler makes of short days, and of files."""

import random

import pytest
from benchmarks.autoscaler import (
    TRACES,
    Flink,
    Model,
    Moorage,
    Scaler,
    main,
    read_trace,
    simulate,
)

from moorage_state.errors import UserError


class Still(Scaler):
    """Never changes anything."""

    def look(self, now, width, report):  # noqa: ARG002  of the interface
        assert report.seconds <= 900.0
        return width


def test_a_job_with_room_keeps_up_and_one_without_falls_behind(monkeypatch):
    day = simulate("constant", Still(), pause=10.0, hours=0.25)
    assert max(day.lags) < 2.0
    assert day.core_hours == pytest.approx(8 * 0.25)
    monkeypatch.setitem(TRACES, "constant", lambda _at, _chance: 16_000.0)
    behind = simulate("constant", Still(), pause=10.0, hours=0.25)
    # Half of what arrives is done, but for what epochs cost beside their rows
    assert behind.lags[-1] == pytest.approx(450, rel=0.2)


@pytest.mark.parametrize("scaler", [Moorage, Flink])
def test_a_constant_load_is_left_alone(scaler):
    assert simulate("constant", scaler(), pause=10.0, hours=1.0).changes == []


def test_a_rising_load_is_followed_before_it_is_too_much():
    day = simulate("ramp", Moorage(), pause=10.0, hours=3.0)
    assert day.widths[-1] > min(day.widths)
    assert max(day.lags) < 60.0


def test_noise_is_no_reason_for_a_change():
    assert simulate("noisy", Moorage(), pause=10.0, hours=2.0).changes == []


_AN_HOUR_AWAY = 3_600.0


@pytest.mark.parametrize("trace", TRACES)
def test_a_whole_day_of_any_load_has_no_flapping_and_a_lag_that_is_bounded(trace):
    day = simulate(trace, Moorage(), pause=10.0, hours=24.0)
    assert day.turns <= 1
    assert len(day.changes) <= 12
    # What waited when the job was back, and what came while a spike was noticed.
    waited = {"outage": _AN_HOUR_AWAY, "spike": 240.0}
    assert max(day.lags) < waited.get(trace, 60.0)
    assert day.late(60.0) < 0.02


@pytest.fixture
def file(tmp_path):
    """A trace with this text."""

    def made(text):
        path = tmp_path / "traffic.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return made


@pytest.mark.parametrize(
    "text",
    [
        "1767225600,100\n1767225660,50.5\n",
        "time,rows_5m\r\n2026-01-01T00:00:00Z, 100\r\n2026-01-01T01:01:00+01:00, 50.5\r\n",
        "\ufeff2026-01-01 00:00:00,100\n\n2026-01-01 00:01:00,50.5",
    ],
    ids=["seconds", "dates and headings", "a mark and an empty line"],
)
def test_a_rate_of_a_file_holds_until_the_next_one(file, text):
    trace = read_trace(file(text))
    assert [trace(at, random.Random(1)) for at in (0.0, 59.0, 60.0, 1e6)] == [
        100.0,
        100.0,
        50.5,
        50.5,
    ]
    assert trace.hours == pytest.approx(1 / 60)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("0,1\n60,1,2\n", "csv:2: a line has a time and a rate: fields=3"),
        ("0,1\n60;1\n", "csv:2: a line has a time and a rate: fields=1"),
        ("0,1\nnoon,1\n", "csv:2: no time: time='noon'; write seconds, such as 60, or a date"),
        ("0,1\ninf,1\n", "csv:2: no time: time='inf'"),
        ("0,1\n60,many\n", "csv:2: no rate: rate='many'; write rows per second"),
        ("0,1\n60,-1\n", "csv:2: no rate: rate='-1'"),
        ("0,1\n60,nan\n", "csv:2: no rate: rate='nan'"),
        ("60,1\n60,1\n", "csv:2: the time is not after that of the line before: time=60"),
        ("time,rate\n0,1\n", "a trace has two lines or more"),
        ("", "lines=0; write time,rate in each"),
        (b"0,1\n60,\xff\n", "the trace cannot be read"),
    ],
)
def test_a_line_that_is_wrong_is_named_with_what_is_to_stand_there(file, text, told):
    with pytest.raises(UserError) as caught:
        read_trace(file(text))
    assert told in str(caught.value)


def test_a_file_goes_in_and_decisions_come_out(file, capsys):
    """Rows of a job whose subtasks do 10 each; from noon on three times as many."""
    lines = ["time,rate", "0,40"] + [f"{3600 + 60 * n},120" for n in range(121)]
    args = ["--trace", str(file("\n".join(lines))), "--each", "10", "--begin", "6"]
    assert main(args) == 0
    rows = capsys.readouterr().out.splitlines()
    assert rows[2].startswith("| traffic | Moorage | 10 s | ")
    decided = rows[rows.index("| pause | hours:minutes | subtasks |") + 2 :]
    first = decided[0].split(" | ")
    assert first[0] == "| 10 s"
    assert first[1].startswith("1:0")
    assert first[2].startswith("6 to ")
    assert "| 120 s |" in "\n".join(decided)


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--trace", "nowhere.csv"], "the trace cannot be read: path=nowhere.csv"),
        (["--trace", "a.csv", "--only", "ramp"], "not allowed with argument"),
        (["--min", "9"], "--min, --begin and --max do not fit: min=9 begin=8 max=32"),
        (["--max", "200"], "from 1 to 128"),
        (["--each", "0"], "a subtask does no such number of rows: each=0.0"),
        (["--hours", "0.001"], "too short: hours=0.0010"),
    ],
)
def test_what_cannot_be_simulated_is_refused_before_anything_is(args, told, capsys):
    with pytest.raises(SystemExit) as ended:
        main(args)
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


def test_a_job_of_another_size_does_as_many_rows():
    large = Model(each=4000.0, begins=2)
    assert max(simulate("constant", Still(), pause=10.0, hours=0.25, model=large).lags) < 2.0
