"""Writes docs/scenarios.md: everything that can happen to a job, and the tests that show it.

    python scripts/scenarios.py            write the file
    python scripts/scenarios.py --check    fail if it is not what it would write

Tests name their scenarios with `@pytest.mark.scenario(number)`, or by beginning with
`test_scenario_<number>_`, or several numbers so.
"""

import ast
import re
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "docs" / "scenarios.txt"
TARGET = ROOT / "docs" / "scenarios.md"
NAMED = re.compile(r"test_scenario_((?:\d+_)+)")
HEAD = """<!-- Made by scripts/scenarios.py from docs/scenarios.txt and the tests: do not edit. -->
# What can happen to a job

Each line is something that happens to jobs on clusters, and what is right then. Tests below
`tests/scenarios` run against the API server in memory, or on any cluster with `--kubeconfig`; those
below `tests/e2e` need a real one; the others show what needs no cluster. A scenario without a test
is not claimed.
"""


def main() -> int:
    """Write or check the file."""
    text = page(tests_by_number())
    if "--check" in sys.argv[1:]:
        if TARGET.exists() and TARGET.read_text() == text:
            return 0
        print(f"{TARGET.relative_to(ROOT)} is out of date; run: python scripts/scenarios.py")
        return 1
    TARGET.write_text(text)
    return 0


def tests_by_number() -> dict[int, list[str]]:
    """Names of tests, with their files, by scenario."""
    found: dict[int, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for number in numbers_of(node):
                    found[number].append(f"`{path.relative_to(ROOT)}::{node.name}`")
    return found


def numbers_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[int]:
    """The scenarios that a test says it shows."""
    named = NAMED.match(node.name)
    numbers = [int(number) for number in named.group(1).split("_") if number] if named else []
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func).endswith(".scenario"):
            numbers += [ast.literal_eval(argument) for argument in decorator.args]
    return numbers


def page(tests: dict[int, list[str]]) -> str:
    """The whole file."""
    lines, known = [HEAD], set[int]()
    for line in SOURCE.read_text().splitlines():
        if line.startswith("#") or not line.strip():
            continue
        if line.startswith(">"):
            lines += [
                "",
                f"## {line[1:].strip()}",
                "",
                "| # | what happens | tests |",
                "|---|---|---|",
            ]
            continue
        number, _, what = line.partition("|")
        if int(number) in known:
            raise SystemExit(f"two scenarios have the number {number.strip()}: give one another")
        known.add(int(number))
        shown = "<br>".join(tests.get(int(number), [])) or "none yet"
        lines.append(f"| {number.strip()} | {what.strip()} | {shown} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
