"""docs/state.md: its examples run, and every test that it names is there."""

import re
from pathlib import Path
from typing import NamedTuple

from moorage_testing import contract_kinds, contract_ttl
from moorage_testing.pages import run_python

from moorage import RuntimeContext
from moorage_state.keyed import KeyedStateStore

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "state.md").read_text()


class Row(NamedTuple):
    page: str
    at: int
    seconds: int


class Context:
    key = "k"


def test_every_promise_names_a_test_and_every_body_is_a_promise():
    bodies = {b.__name__ for b in (*contract_kinds.BODIES, *contract_ttl.BODIES)}
    promised = {
        name
        for line in PAGE.splitlines()
        if line.startswith("| ") and line.count(" | ") == 1
        for name in re.findall(r"`([a-z_]+)`", line.rsplit(" | ", 1)[1])
    }
    assert promised - bodies == set()
    assert bodies - promised == set()
    here = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    named = set(re.findall(r"`(test_[a-z_]+)`", PAGE))
    assert {name for name in named if f"def {name}(" not in here} == set()
    for path in re.findall(r"`(tests/[a-z_/]+\.py)`", PAGE):
        assert (ROOT / path).is_file(), path


def test_the_examples_run(fake_range, at_key):
    names = vars(run_python("docs/state.md"))
    assert names["sessions"].ttl.ttl_ms == 30 * 60 * 1000
    store = KeyedStateStore(fake_range, 1, now_ms=1)
    visits = names["Visits"]()
    visits.open(RuntimeContext(store, "visits", 0, 1))
    at_key(store)
    rows = [Row("a", 1, 10), Row("b", 2, 30), Row("a", 3, 20)]
    out = [made for row in rows for made in visits.process(row, Context())]
    assert out == [("k", 10.0), ("k", 20.0), ("k", 20.0)]
    assert visits.last.value() == ("a", 3)
    assert visits.pages.get() == ["a", "b", "a"]
    assert dict(visits.by_page.items()) == {"a": 2, "b": 1}
    assert visits.longest.get() == 30
