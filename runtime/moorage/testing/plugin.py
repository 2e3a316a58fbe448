"""The plugin of pytest that comes with the package: `keyed_harness` and `moorage_spark`.

What a test may mend it tells in a few lines, where pytest would show all of the engine's.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from moorage.testing.keyed_harness import KeyedHarness


@pytest.fixture
def keyed_harness() -> "Iterator[Callable[..., KeyedHarness]]":
    """Makes a `KeyedHarness` of the same arguments; it is closed with the test."""
    # Here, and not above: whoever has the package installed runs tests of other things, too.
    from moorage.testing.keyed_harness import KeyedHarness

    with ExitStack() as stack:

        def make(*args: Any, **options: Any) -> KeyedHarness:
            return stack.enter_context(KeyedHarness(*args, **options))

        yield make


@pytest.fixture(scope="session")
def moorage_spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """The session of Spark of this process, for `run_job`; one on one core, if there is none."""
    from moorage.testing.session import session_of_tests

    with session_of_tests(tmp_path_factory.mktemp("moorage-spark")) as spark:
        yield spark


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Before the report is made: an error of the job's author is shown without our own lines."""
    if call.excinfo is None or item.config.getoption("fulltrace"):
        return
    from moorage.testing.tracebacks import shorten

    if shorten(error := call.excinfo.value):
        call.excinfo = pytest.ExceptionInfo.from_exception(error)
