"""Every block of code in the pages runs, or is judged, or says why it cannot be."""

import itertools
import re
import sys
import tempfile
from types import ModuleType

import pytest
from moorage_testing.page_faults import faults
from moorage_testing.pages import ROOT, Block, blocks, pages, run_python

PAGES = pages()
ALL = [block for page in PAGES for block in blocks(page)]
# Pages whose own test runs them, since it looks at what they made.
OWN = {"docs/state-backends.md": "tests/unit/backends/test_docs.py"}


@pytest.fixture
def job(monkeypatch):
    """The module `job` of which pages speak: the README's, with the function of docs/jobs.md."""
    made = ModuleType("job")
    jobs = {**vars(run_python("docs/jobs.md")), **vars(run_python("README.md"))}
    vars(made).update({name: value for name, value in jobs.items() if name[0] != "_"})
    monkeypatch.setitem(sys.modules, "job", made)


@pytest.mark.parametrize("page", [page for page in PAGES if page not in OWN])
@pytest.mark.usefixtures("job")
def test_the_python_of_a_page_runs_jobs_and_tests_alone_and_all_else_in_its_order(
    page, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    run_python(page)


@pytest.mark.parametrize("block", ALL, ids=lambda block: f"{block.page}:{block.line}")
def test_a_block_is_what_it_says_and_names_only_what_is_there(block):
    assert list(faults(block)) == []


CODE = r"(def|class|from|import|make|moorage|kubectl|helm|docker|python|pip|spark\.|stream\.) ?"


@pytest.mark.parametrize("page", PAGES)
def test_code_stands_in_fences_where_it_is_looked_at(page):
    lines = (ROOT / page).read_text().splitlines()
    indented = [
        line
        for before, line in itertools.pairwise(lines)
        if not before.strip() and re.match(rf" {{4,}}{CODE}", line)
    ]
    fenced = {line for block in blocks(page) for line in block.code.splitlines()}
    assert [line for line in indented if line not in fenced] == []


def test_pages_with_a_test_of_their_own_are_run_by_it():
    assert [page for page, test in OWN.items() if page not in (ROOT / test).read_text()] == []


RUN = {"run-by": "tests/docs/test_quickstart.py"}
WRONG = {
    "python": "def f(:",
    "json": "{",
    "yaml": "spec: {scaling: {paralelism: 2}}",
    "sh": "moorage run job.yaml --parallelsim 4",
    "text": "moorage state get PATH UID/STATE [--map-keys KEY]",
}


@pytest.mark.parametrize("language", WRONG)
def test_a_block_with_a_mistake_is_found(language):
    block = Block(
        "docs/quickstart.md", 1, language, RUN if language == "sh" else {}, WRONG[language]
    )
    try:
        assert list(faults(block))
    except (SyntaxError, ValueError):
        assert language in {"python", "json"}


@pytest.mark.parametrize(
    ("code", "missing"),
    [
        ("def build(env):\n    FileSink('out')\n", ["FileSink"]),
        ("def test_a():\n    assert minute(1)\n", ["minute"]),
        ("class A(Base):\n    def f(self):\n        return x\ndef build(env): ...", ["Base", "x"]),
        ("import os\ndef test_a(f):\n    def g(): return f, os, len\n    assert g()\n", []),
        ("stream.sink_to(FileSink('out'))\n", []),  # no job, no test: its page's blocks go before
    ],
)
def test_a_job_or_a_test_that_lacks_names_of_other_blocks_is_found(code, missing):
    found = list(faults(Block("docs/joins.md", 1, "python", {}, code)))
    assert [str(missing) in one for one in found] == ([True] if missing else [])


def test_a_test_is_run_without_the_blocks_above_it(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\nN = 1\n```\n\n```python\ndef test_n():\n    assert N\n```\n")
    with pytest.raises(NameError):
        run_python(str(page))
    page.write_text("```python\ndef test_n(): ...\n```\n\n```python\nN = test_n\n```\n")
    assert run_python(str(page)).N  # what is neither knows all that is above it


@pytest.mark.parametrize(
    "code",
    ["moorage rnu x", "make tset", "kubectl apply -f crds/none.yaml", "echo $(", "x | moorage y"],
)
def test_a_command_that_there_is_not_is_found(code):
    assert list(faults(Block("docs/quickstart.md", 1, "sh", RUN, code)))


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        (RUN, ""),
        ({"no-run": "asks a cluster"}, ""),
        ({}, "commands that nobody runs"),
        ({"no-run": "is long"}, "no reason that is known"),
        ({"no-run": "builds images"}, "nothing in it bears that out"),
        ({"run-by": "tests/docs/test_none.py"}, "there is no such test"),
        ({"run-by": "tests/docs/test_bootstrap.py"}, "the test does not name the page"),
    ],
)
def test_commands_say_who_runs_them_or_why_nobody_does(options, wrong):
    found = list(faults(Block("docs/quickstart.md", 1, "sh", options, "kubectl get pods")))
    assert [one.startswith(wrong) for one in found] == ([True] if wrong else [])
