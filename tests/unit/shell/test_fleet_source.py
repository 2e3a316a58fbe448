"""The fleet file on a disk: it is read again when it changes, and only then."""

import pytest

from moorage_operator.fleet_source import FleetSource


@pytest.fixture
def clock():
    return [0.0]


def test_a_file_is_read_again_when_it_changes(tmp_path, clock):
    file = tmp_path / "fleet.yaml"
    file.write_text("limits: {executors: 1}")
    source = FleetSource(file, lambda: clock[0])
    assert source().limits("a").executors == 1
    # As the kubelet does it: another file under the same name.
    other = tmp_path / "other"
    other.write_text("limits: {executors: 2}")
    other.rename(file)
    assert source().limits("a").executors == 1
    clock[0] += 3
    assert source().limits("a").executors == 2
    same = source()
    clock[0] += 3
    assert source() is same


def test_a_file_that_is_not_there_is_a_problem_until_it_is(tmp_path, clock):
    file = tmp_path / "fleet.yaml"
    source = FleetSource(file, lambda: clock[0])
    assert "cannot be read" in str(source().problems[0])
    file.write_text("")
    clock[0] += 3
    assert source().problems == ()


def test_what_is_wrong_is_logged_once(tmp_path, clock, caplog):
    file = tmp_path / "fleet.yaml"
    file.write_text("profiles: {a: {image: b}}")
    source = FleetSource(file, lambda: clock[0])
    for _ in range(3):
        source()
        clock[0] += 3
    assert caplog.text.count("is each job's own") == 1


def test_without_a_file_nothing_holds_for_many_jobs(clock):
    assert FleetSource(None, lambda: clock[0])().profile("a", None).values == {}
