"""The example's modules, which are scripts beside each other and no package."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest
from moorage_testing.example_scripts import scripts_of

FLIGHTS = Path(__file__).parents[3] / "examples" / "flights"


@pytest.fixture
def example() -> Iterator[Callable[[str], ModuleType]]:
    """Import a module of the flights example, as a script in its directory would."""
    with scripts_of(FLIGHTS) as load:
        yield load


@pytest.fixture
def departures() -> Callable[..., pd.DataFrame]:
    """A table of departures, written as `"N1 2013-01-01T08:00 LAX 15"` each."""

    def table(*lines: str) -> pd.DataFrame:
        rows = [line.split() for line in lines]
        return pd.DataFrame(
            {
                "departed": pd.to_datetime([r[1] for r in rows], utc=True),
                "tailnum": [r[0] for r in rows],
                "dest": [r[2] for r in rows],
                "delay": [int(r[3]) for r in rows],
            }
        )

    return table
