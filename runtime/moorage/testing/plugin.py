"""The plugin of pytest that comes with the package: the fixture `keyed_harness`."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
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
