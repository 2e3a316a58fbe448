"""The traps of RocksDB's binding stay closed: what is one is not used, and each has its test."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ROCKS = ROOT / "backends" / "moorage_state" / "rocks"
DOC = (ROOT / "docs" / "rocksdict.md").read_text()
SILENT = {"items", "keys", "values", "entities", "columns", "snapshot", "live_files"}


def attributes(path):
    """Of every `something.name` in a module: the name, and what it is asked of."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            yield node.attr, ast.unparse(node.value)


def test_the_silent_helpers_are_not_used_anywhere():
    within = {(p.name, name) for p in ROCKS.glob("*.py") for name, _ in attributes(p)}
    # A frame's own fields have these names too.
    used = {name for _, name in within if name in SILENT} - {"keys", "values"}
    of_databases = {
        f"{path.name}: {owner}.{name}"
        for path in ROCKS.glob("*.py")
        for name, owner in attributes(path)
        if name in {"keys", "values"} and owner != "frame"
    }
    assert (used, of_databases) == ({"live_files", "snapshot"}, set())
    # Single keys of a snapshot do not show later writes, as what iterates over one does.
    asked = [
        ast.unparse(node)
        for node in ast.walk(ast.parse((ROCKS / "adapter.py").read_text()))
        if isinstance(node, ast.Attribute) and "_held()" in ast.unparse(node.value)
    ]
    assert asked == ["self._held().__getitem__"]
    # They list files by their bounds, and a range has one column family.
    listing = {module for module, name in within if name == "live_files"}
    assert listing == {"adapter.py", "sliced.py"}


def test_a_database_of_the_binding_is_made_in_one_place():
    made = [
        path.name
        for path in (ROOT / "backends").rglob("*.py")
        for name, owner in attributes(path)
        if (name, owner) == ("Rdict", "rocksdict")
    ]
    assert set(made) == {"adapter.py"}


def test_nobody_reaches_past_the_adapter_for_the_database():
    folders = (ROOT / name for name in ("backends", "runtime", "operator", "benchmarks"))
    stray = {
        f"{path.relative_to(ROOT)}: {owner}.{name}"
        for folder in folders
        for path in folder.rglob("*.py")
        if path.parent != ROCKS
        for name, owner in attributes(path)
        if name == "_db" and "database" in owner.lower()
    }
    assert stray == set()


@pytest.mark.parametrize("number", range(1, 13))
def test_every_trap_has_a_test_that_is_there(number):
    (row,) = re.findall(rf"^\| {number} \|.*$", DOC, re.MULTILINE)
    named = re.findall(r"`(tests/\S+)::(test_\w+)`", row)
    assert named
    for path, name in named:
        assert f"def {name}(" in (ROOT / path).read_text()
