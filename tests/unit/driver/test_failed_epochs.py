"""What Spark hears of an epoch that failed, what people do, and what is left of a run."""

import traceback

import pytest
from moorage_testing.journeys import DriverWorld

from moorage.driver.query import Halted
from moorage.driver.stream_run import StreamRun
from moorage.engine.task_failures import with_causes
from moorage_state.errors import Bug, Retryable, UserError


@pytest.fixture
def run(tmp_path):
    world = DriverWorld(tmp_path)
    world.found()
    return world.begin()


def test_spark_is_not_told_why_and_people_are(run, monkeypatch, caplog):
    """Its search for a word in a long text overflows the stack of the stream's thread."""
    cause = ValueError(
        "An error occurred while calling o1.collectToPython.\n: SparkException: gone"
    )
    failure = Retryable("no executor answers")

    def fail(*_):
        raise failure from cause

    monkeypatch.setattr(StreamRun, "_require_next", fail)
    with pytest.raises(Exception, match=r"\A\Z") as caught:
        run._on_batch(None, 1)
    told = "".join(traceback.format_exception(caught.value))
    for words in (str(failure), "SparkException: gone"):
        assert words not in told
        assert words in caplog.text
    # The job gets over it.
    assert not has_frames(caplog)
    with pytest.raises(Retryable, match="no executor answers"):
        run._raise_failure()


def test_an_error_that_is_its_own_cause_is_told_once():
    error = Retryable("no executor answers")
    error.__cause__ = error
    assert with_causes(error) == "no executor answers"


def has_frames(caplog):
    """Whether a line was told with frames, however they are laid out.

    A logger of Spark's, once there is one, makes JSON of all that pytest catches.
    """
    return any(record.exc_info for record in caplog.records)


def fails(run, monkeypatch, error):
    """A batch of which an epoch ends with this error."""

    def fail(*_):
        raise error

    monkeypatch.setattr(StreamRun, "_require_next", fail)
    with pytest.raises(Halted):
        run._on_batch(None, 1)


def test_a_fault_of_ours_is_told_with_frames(run, monkeypatch, caplog):
    fails(run, monkeypatch, Bug("a range is served twice"))
    assert "a range is served twice" in caplog.text
    assert has_frames(caplog)


def test_what_a_person_must_mend_comes_without_frames_of_ours(run, monkeypatch, caplog):
    fails(run, monkeypatch, UserError("rows with a null key"))
    assert "the epoch failed: batch=1" in caplog.text
    assert not has_frames(caplog)
    with pytest.raises(UserError, match="rows with a null key"):
        run._raise_failure()


def test_a_run_that_ends_leaves_no_log_of_spark_behind(run, monkeypatch, tmp_path):
    log = tmp_path / "scratch" / f"spark-{run._run}"
    (log / "offsets").mkdir(parents=True)

    def fail(*_):
        raise Retryable("no executor answers")

    monkeypatch.setattr(StreamRun, "_start_query", lambda _: None)
    monkeypatch.setattr(StreamRun, "_until_end", fail)
    run._c.stop.set()
    with pytest.raises(Retryable, match="no executor answers"):
        run.drive()
    assert not log.exists()
