"""A working directory that something removes while the job runs, such as a cleaner of /tmp."""

import shutil
from types import SimpleNamespace
from typing import Any

import pytest

from moorage.driver.restore_point import Choice
from moorage.driver.runner import _runs
from moorage.engine.task_failures import SparkEnded
from moorage_state.errors import CorruptState, Fenced, LocalDiskError, MoorageError, Retryable

OTHERS = [
    SparkEnded("the stream's query has ended by itself"),
    Retryable("the server does not answer"),
    CorruptState("a file is missing", "/state/1.sst", "restore"),
]


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """A job of which the first run ends with an error, its working directory gone or not."""
    scratch = tmp_path / "run-1"
    scratch.mkdir()
    began: list[int] = []

    def end(error: MoorageError, *, removes: bool) -> None:
        class Run:
            checkpointer = SimpleNamespace(last=None)

            def __init__(self, *_args: Any, **_kwargs: Any) -> None:
                began.append(1)

            def drive(self) -> None:
                if removes:
                    shutil.rmtree(scratch)
                raise error

        monkeypatch.setattr("moorage.driver.runner.StreamRun", Run)
        context: Any = SimpleNamespace(
            standby=None,
            graph=SimpleNamespace(operators=[]),
            settings=SimpleNamespace(restore=SimpleNamespace(mode="Latest")),
            stop=SimpleNamespace(is_set=lambda: True),
            completed=SimpleNamespace(begin_from=lambda *_a, **_k: None, latest=None),
            directories=(scratch,),
        )
        _runs(context, Choice(None, explicit=True))

    return SimpleNamespace(end=end, scratch=scratch, began=began)


@pytest.mark.parametrize("error", OTHERS, ids=lambda error: type(error).__name__)
def test_the_job_ends_with_the_directory_and_the_option_that_names_another(runs, error):
    with pytest.raises(LocalDiskError, match="--local-dir") as told:
        runs.end(error, removes=True)
    assert f"path={runs.scratch};" in str(told.value)
    assert told.value.__cause__ is error
    assert len(runs.began) == 1, "another run would find nothing either"


@pytest.mark.parametrize("error", OTHERS, ids=lambda error: type(error).__name__)
def test_what_failed_with_all_directories_in_place_is_told_as_it_is(runs, error):
    with pytest.raises(type(error)) as told:
        runs.end(error, removes=False)
    assert told.value is error


def test_a_driver_that_was_replaced_says_so_first(runs):
    with pytest.raises(Fenced):
        runs.end(Fenced("another took over"), removes=True)
