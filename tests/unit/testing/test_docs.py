"""Every block of docs/testing.md is run, in its order, with the jobs that it names."""

import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from moorage import KeyedProcessFunction, Session, ValueStateDescriptor, count
from moorage.testing import KeyedHarness

DOCS = Path(__file__).parents[3]


def blocks(path):
    return re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)


class Count(KeyedProcessFunction):
    """The README's, whose state has a type that is given."""

    def __init__(self, kind="long"):
        self.kind = kind

    def open(self, ctx):
        self.clicks = ctx.get_state(ValueStateDescriptor("clicks", self.kind))

    def process(self, row, ctx):  # noqa: ARG002  as it is written
        clicks = (self.clicks.value() or 0) + 1
        self.clicks.update(clicks)
        yield ctx.key, clicks


def module(text):
    made = ModuleType("job")
    exec(compile(text, "job.py", "exec"), made.__dict__)  # noqa: S102  our own pages
    return made


README = next(text for text in blocks(DOCS / "README.md") if "def build" in text)
JOBS = blocks(DOCS / "docs/jobs.md")[0]
GIVEN = {
    "utc": lambda ms: datetime.fromtimestamp(ms / 1000, UTC),
    "Session": Session,
    "count": count,
}


@pytest.mark.parametrize("number", range(len(blocks(DOCS / "docs/testing.md"))))
def test_a_block_of_the_page_does_what_it_says(number, monkeypatch):
    text = blocks(DOCS / "docs/testing.md")[number]
    job = module(JOBS if "Silence" in text else README)
    monkeypatch.setitem(sys.modules, "job", job)
    names: dict[str, Any] = {**GIVEN, "KeyedHarness": KeyedHarness}
    if 'Count("int")' in text:
        names["Count"] = Count
    before = set(names)
    exec(compile(text, "testing.md", "exec"), names)  # noqa: S102  our own page
    tests = [names[name] for name in names.keys() - before if name.startswith("test_")]
    assert len(tests) == 1
    tests[0]()
