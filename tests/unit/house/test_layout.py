"""The layout that every package relies on, and the arrows between packages."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ROOTS = ("backends", "operator", "runtime")
STDLIB = sys.stdlib_module_names

# What a package may import at all. import-linter forbids names; this list forbids all others.
ALLOWED = {
    "operator/moorage_api": {"moorage_api", "pydantic", "pydantic_core", "yaml"},
    "operator/moorage_operator": {
        "aiohttp",
        "kopf",
        "kubernetes",
        "moorage_api",
        "moorage_operator",
        "moorage_state.errors",
        "moorage_state.snapshots",
        "moorage_state.stores",
        "moorage_state.tuning",
        "msgspec",
        "prometheus_client",
        "pydantic",
        "yaml",
    },
    "backends/moorage_state": {
        "boto3",
        "botocore",
        "mmh3",
        "moorage_state",
        "msgspec",
        "numpy",
        "pyarrow",
        "rocksdict",
        "xxhash",
    },
}


def imports_of(path):
    """The dotted names that a module imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module


def is_within(name, allowed):
    return any(name == one or name.startswith(f"{one}.") for one in allowed)


@pytest.mark.parametrize("folder", ROOTS)
def test_the_folders_on_the_import_path_are_no_packages(folder):
    assert not (ROOT / folder / "__init__.py").exists(), "it would shadow the standard library"


def test_the_standard_librarys_operator_is_found_from_the_root():
    import operator

    assert operator.eq(1, 1)


@pytest.mark.parametrize("package", ALLOWED)
def test_a_package_imports_only_what_it_may_know(package):
    stray = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in (ROOT / package).rglob("*.py")
        for name in imports_of(path)
        if name.split(".")[0] not in STDLIB and not is_within(name, ALLOWED[package])
    }
    assert not stray


def test_only_the_adapter_imports_rocksdict():
    rocks = ROOT / "backends" / "moorage_state" / "rocks"
    stray = {
        str(path.relative_to(ROOT))
        for folder in ROOTS
        for path in (ROOT / folder).rglob("*.py")
        if rocks not in path.parents and any(is_within(n, {"rocksdict"}) for n in imports_of(path))
    }
    assert not stray


def test_every_package_says_in_its_docstring_what_it_is():
    silent = [
        str(path.relative_to(ROOT))
        for folder in ROOTS
        for path in (ROOT / folder).rglob("__init__.py")
        if not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert not silent
