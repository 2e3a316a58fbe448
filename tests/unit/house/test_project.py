"""The project's own files agree with each other."""

import re
import stat
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REQUIREMENTS = [
    Requirement(text)
    for group in [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    for text in group
    if not text.startswith("moorage[")
]


def constraints():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in (p.split("==") for p in pins)}


def recipes():
    """The Makefile's targets and their recipe lines."""
    found: dict[str, list[str]] = {}
    target = None
    for line in (ROOT / "Makefile").read_text().splitlines():
        head = re.match(r"^([a-z0-9]+):", line)
        if head:
            target = head[1]
            found[target] = []
        elif line.startswith("\t") and target:
            found[target].append(line.strip())
    return found


@pytest.mark.parametrize("requirement", REQUIREMENTS, ids=str)
def test_what_the_project_asks_for_is_pinned_within_its_range(requirement):
    assert constraints()[canonicalize_name(requirement.name)] in requirement.specifier


def test_constraints_are_names_and_versions_only():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line) for line in pins)
    assert pins == sorted(pins, key=str.lower)


def test_every_range_with_a_cap_says_why():
    """A cap is a promise to look again; without its reason nobody knows at what."""
    text = (ROOT / "pyproject.toml").read_text()
    section = text.split("dependencies = [", 1)[1].split("[project.scripts]")[0]
    capped = [line for line in section.splitlines() if re.match(r'^\s+"[^"]*<', line)]
    assert capped
    assert [line.strip() for line in capped if "#" not in line] == []


def test_the_words_that_people_and_ci_use_are_targets():
    assert {"setup", "demo", "test", "check", "bench", "soak", "e2e", "clean", "help"} <= set(
        recipes()
    )


def test_ci_runs_check_and_test_and_nothing_else():
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & stat.S_IXUSR
    lines = [line for line in script.read_text().splitlines() if line and not line.startswith("#")]
    assert lines[2:] == ["make check", "make test"]


def test_the_readme_has_exactly_two_set_up_commands():
    text = (ROOT / "README.md").read_text()
    block = text.split("## Set up", 1)[1].split("```")[1]
    commands = [line.split("#")[0].strip() for line in block.splitlines()[1:] if line.strip()]
    assert commands == ["make demo", "make test"]


def test_the_license_is_the_one_that_the_project_names():
    text = (ROOT / "LICENSE").read_text()
    assert PROJECT["license"] == "Apache-2.0"
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_the_changelog_has_a_place_for_what_is_not_released():
    assert "## [Unreleased]" in (ROOT / "CHANGELOG.md").read_text()


def test_decision_records_are_numbered_without_gaps_and_follow_the_template():
    folder = ROOT / "docs" / "adr"
    headings = headings_of(folder / "template.md")
    records = sorted(folder.glob("[0-9]*.md"))
    assert [int(path.name[:4]) for path in records] == list(range(1, len(records) + 1))
    for path in records:
        found = headings_of(path)
        assert {"Context", "Decision", "Consequences"} <= set(found), path.name
        assert found == [heading for heading in headings if heading in found], path.name


def headings_of(path):
    return re.findall(r"^## (.*)", path.read_text(), re.MULTILINE)


def test_what_is_hidden_from_the_type_checker_says_why():
    """`type: ignore[code]  # reason`; a `noqa` with its reason may stand in between."""
    silent = []
    for folder in ("backends", "benchmarks", "examples", "operator", "runtime", "scripts", "tests"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for number, line in enumerate(path.read_text().splitlines(), 1):
                _, found, after = line.partition("# type: " + "ignore")
                if found and not re.search(r"(#|- ) ?[^\W\d].*$", after):
                    silent.append(f"{path.relative_to(ROOT)}:{number}")
    assert silent == []
