"""The benchmark of reads after a restore, on a few keys."""

import pytest
from benchmarks.reads import forms, key_of, main


def test_all_forms_hold_the_same_state(tmp_path):
    numbers = [2 * n for n in range(500)]
    keys = sorted(map(key_of, numbers))
    with forms(tmp_path, numbers) as opened:
        first = opened["written"].read(keys)
        assert None not in first
        assert all(form.read(keys) == first for form in opened.values())
        absent = sorted(key_of(n + 1) for n in numbers)
        assert all(form.read(absent) == [None] * 500 for form in opened.values())


@pytest.mark.parametrize(("goal", "status"), [(0.0, 0), (1e9, 1)])
def test_slower_reads_are_a_failure(monkeypatch, capsys, goal, status):
    monkeypatch.setattr("benchmarks.reads.GOAL", goal)
    assert main(["--keys", "300", "--rounds", "1"]) == status
    assert "ranges" in capsys.readouterr().out
