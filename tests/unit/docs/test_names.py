"""What people are told to type and look at when something is wrong is there by that name."""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any, get_args

import pytest
import yaml
from moorage_testing.page_faults import faults
from moorage_testing.pages import BLOCK, ROOT, Block

from moorage_api import unsupported
from moorage_api.reserved import DRIVER_CONTAINER
from moorage_api.status import Phase

PAGES = ["docs/runbook.md", "docs/disaster-recovery.md", "docs/backfill.md"]
# Of others: Kubernetes, Kafka.
FOREIGN = {"ImagePullBackOff", "startingOffsets"}
SPEC = "spec."


def named(page: str) -> Iterator[tuple[int, str]]:
    """What stands between backticks in a line of a page, blocks left out, and the line's number."""
    text = BLOCK.sub(lambda found: "\n" * found[0].count("\n"), (ROOT / page).read_text())
    for number, line in enumerate(text.splitlines(), 1):
        for word in re.findall(r"`([^`]+)`", line):
            yield number, word


@cache
def sources() -> str:
    """Everything that can say a reason, and the metrics."""
    folders = ("operator", "runtime/moorage", "backends", "charts/moorage/files")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    kept = [path for path in files if path.suffix in {".py", ".yaml"} and "crds" not in path.parts]
    return "\n".join(path.read_text() for path in [*kept, ROOT / "docs" / "reference-metrics.md"])


@cache
def known_paths() -> frozenset[str]:
    """Fields of a job, below `spec.` or not, and values of the chart."""
    found: set[str] = set()
    for file in sorted((ROOT / "crds").glob("*.yaml")):
        for version in yaml.safe_load(file.read_text())["spec"]["versions"]:
            found |= set(fields(version["schema"]["openAPIV3Schema"]["properties"]))
    found |= {path.removeprefix(SPEC) for path in found if path.startswith(SPEC)}
    values = yaml.safe_load((ROOT / "charts" / "moorage" / "values.yaml").read_text())
    return frozenset(found | set(keys(values)))


def fields(properties: dict[str, Any], above: str = "") -> Iterator[str]:
    for name, schema in properties.items():
        yield above + name
        yield from fields(schema.get("properties", {}), f"{above}{name}.")


def keys(values: Any, above: str = "") -> Iterator[str]:
    for name, value in values.items() if isinstance(values, dict) else ():
        yield above + name
        yield from keys(value, f"{above}{name}.")


def is_there(page: str, line: int, word: str) -> bool:
    """Whether a command, a field, a reason, a metric or an annotation is known."""
    if re.match(r"(kubectl|moorage|make|helm) ", word):
        return not list(faults(Block(page, line, "text", {}, word)))
    if re.fullmatch(r"[a-z][A-Za-z]*(\.[A-Za-z]+)+(: \S+)?", word):
        return word.split(":", maxsplit=1)[0] in known_paths()
    if re.fullmatch(r"(?:[A-Z][a-z]+[A-Za-z]*|[A-Z]+(_[A-Z]+)+|moorage[._].+)", word):
        return word in FOREIGN or re.search(rf"\b{re.escape(said(word))}\b", sources()) is not None
    return True


def said(word: str) -> str:
    """As the code says it: an annotation's group is put before it elsewhere."""
    return re.sub(r"_count$", "", word.removeprefix("moorage.dev/"))


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_names_is_there(page):
    wrong = [(line, word) for line, word in named(page) if not is_there(page, line, word)]
    assert wrong == []


@pytest.mark.parametrize(
    "word",
    [
        "kubectl moorage histroy JOB",
        "moorage state count PATH UID --by-groups",
        "checkpoint.timeuot",
        "StoreUnreachabel",
        "CHECKPOINT_EXPIERD",
        "moorage.dev/atempt",
        "moorage_operator_api_requests_count",
    ],
)
def test_a_name_that_there_is_not_is_found(word):
    assert not is_there("docs/x.md", 1, word)


def test_the_log_that_is_asked_for_is_that_of_the_drivers_container():
    assert f"svc/JOB-driver -c {DRIVER_CONTAINER} " in (ROOT / PAGES[0]).read_text()


def test_the_page_of_a_driver_names_what_it_does_not_support_and_nothing_else():
    page = (ROOT / "docs" / "driver-endpoint.md").read_text()
    told = page.partition("`not_supported`: ")[2].partition(". ")[0]
    words = {word.partition(":")[0] for word in re.findall(r"`([^`]+)`", told)}
    refused = {field.removeprefix(SPEC) for field, *_ in unsupported._NOT_YET}
    assert words - {"batch"} == refused


def test_the_page_of_the_operators_states_explains_every_phase_and_no_other():
    text = (ROOT / "docs" / "operator-states.md").read_text()
    table = text.partition("## Phases")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE)[1:]
    assert sorted(word for row in rows for word in row.split(", ")) == sorted(get_args(Phase))


def test_nobody_is_told_to_restart_jobs_without_looking_which_were_given_up():
    """A restart by annotation has a version tried again that was rolled back."""
    for page in sorted((ROOT / "docs").glob("*.md")):
        for line in page.read_text().splitlines():
            assert not re.search(r"annotate ssj\b.*--all\b.*moorage\.dev/restart", line), page
