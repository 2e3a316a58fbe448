"""The examples of docs/joins.md, run as they are written."""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from moorage.testing import run_job

PAGE = (Path(__file__).parents[3] / "docs" / "joins.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
HOUR = 3_600_000


def jobs():
    """What each block defines; later ones go on with the names of those before."""
    names: dict[str, Any] = {}
    for text in BLOCKS:
        exec(compile(text, "joins.md", "exec"), names)  # noqa: S102  our own page
        yield dict(names)


def at(ms):
    return datetime.fromtimestamp(ms / 1000, UTC)


def test_orders_come_with_the_time_of_their_payment_or_go_aside():
    build = next(jobs())["build"]
    epochs: list[Any] = [
        {"orders": [("a", 1.0, at(0)), ("b", 2.0, at(5))], "payments": [("a", at(HOUR - 1))]},
        {"orders": [("c", 3.0, at(9))], "payments": [("c", at(7))]},
    ]
    found = run_job(build, epochs)
    assert sorted(found["paid-out"]) == [("a", 1.0, HOUR - 1), ("c", 3.0, 7)]
    assert found["unpaid-out"] == [("b", 2.0)]
