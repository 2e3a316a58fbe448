"""The benchmark of look-ups judges what it measured, and says so."""

import pytest
from benchmarks.lookups import Window, _judge


def window(cpu, keys=0, ms=()):
    return Window(1_000_000, cpu, 10.0, keys, list(ms))


def test_what_was_kept_is_said(capsys):
    fast = [5.0] * 99 + [500.0]
    assert _judge([window(2.0)], [window(2.1, 100_000, [*fast, *[5.0] * 100])], 10_000) == 0
    assert "10,000 keys/s of 10,000 asked (kept)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("busy", "line"),
    [
        (window(2.1, 90_000, [5.0] * 100), "answered: 9,000 keys/s of 10,000 asked (not kept)"),
        (window(2.1, 100_000, [5.0] * 98 + [30.0] * 2), "below 20 (not kept)"),
        (window(2.3, 100_000, [5.0] * 100), "1.150x"),
    ],
)
def test_what_was_not_kept_is_an_error(capsys, busy, line):
    assert _judge([window(2.0)], [busy], 10_000) == 1
    assert line in capsys.readouterr().out
