import csv
import json
import re
from pathlib import Path

import pytest
from moorage_testing.lineages import SmallJob
from sqlite_backend import SqliteStateBackend

from moorage.state import read
from moorage.state.spark_source import StateSource
from moorage_state.errors import UserError
from moorage_state.state_backends import registry


def result(out):
    document = json.loads(out)
    assert list(document)[:2] == ["format", "command"]
    assert document["format"] == 1
    return document


def test_states_are_listed_with_their_types(moorage, directory):
    status, out, _ = moorage("state", "ls", directory)
    assert status == 0
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == [
        "visits/visit",
        "visits/pages",
        "visits/by_day",
        "visits/_timers",
    ]
    assert "date -> double" in lines[3]
    rows = result(moorage("state", "ls", directory, "-o", "json")[1])["states"]
    assert rows[0]["key_types"] == ["string"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("visits/visit", '{"n": 3, "at": "2026-01-02T03:04:05Z", "note": "again"}\n'),
        ("visits/pages", "page-0\npage-1\npage-2\n" * 2),
        ("visits/by_day", "KEY         VALUE\n1969-12-31  NaN\n2026-01-04  3.5\n"),
    ],
)
def test_what_a_key_has_is_printed_as_it_is(moorage, directory, name, expected):
    assert moorage("state", "get", directory, name, "user-3") == (0, expected, "")


@pytest.fixture
def strangers(tmp_path):
    """A lineage whose state is in the files of a backend that a job brought."""
    with SmallJob(tmp_path / "strange", tmp_path, backend=SqliteStateBackend()) as job:
        job.visit(range(5))
        job.checkpoint()
    yield tmp_path / "strange"
    registry._factories.pop("sqlite", None)


def test_files_of_a_backend_of_ones_own_are_read_where_its_class_is_named(moorage, strangers):
    asked = "get", strangers, "visits/pages", "user-3"
    status, _, err = moorage("state", *asked)
    assert status == 2
    assert "written_by=sqlite" in err
    assert "--backend module:Class --code FOLDER" in err
    named = "--backend", "sqlite_backend:SqliteStateBackend", "--code", strangers
    assert moorage("state", *named, *asked) == (0, "page-0\npage-1\npage-2\n", "")
    assert moorage("state", "--backend", "sqlite_backend:Nothing", *asked)[0] == 2


class SqliteFactory:
    identifier = "sqlite"

    def create_from_config(self, config):
        return SqliteStateBackend().configure(config)


def test_files_of_a_backend_of_ones_own_are_read_where_its_factory_is_named(moorage, strangers):
    named = "--backend", f"{__name__}:SqliteFactory", "--code", Path(__file__).parent
    found = moorage("state", *named, "get", strangers, "visits/pages", "user-3")
    assert found == (0, "page-0\npage-1\npage-2\n", "")


@pytest.mark.parametrize("name", ["hashmap", "rocksdb", "JobManager", "batch"])
def test_naming_a_backend_that_is_known_anyway_changes_nothing(moorage, directory, name):
    asked = "get", directory, "visits/pages", "user-3"
    for _ in range(2):
        assert moorage("state", "--backend", name, *asked) == moorage("state", *asked)


def test_executors_are_asked_for_no_files_that_they_cannot_open(strangers):
    registry.register_backend("sqlite_backend:SqliteStateBackend")
    asked = {"path": str(strangers), "uid": "visits", "state": "pages"}
    assert read(**asked).num_rows > 0
    for made in (lambda: read(**asked, spark=object()), lambda: StateSource(asked).schema()):
        with pytest.raises(
            UserError, match=r"written_by=sqlite .*without spark= .* canonical save"
        ):
            made()


def test_timers_are_printed_with_their_times(moorage, directory):
    _, out, _ = moorage("state", "get", directory, "visits/_timers", "user-4")
    assert out == "4000  1970-01-01 00:00:04Z\n"


def test_one_entry_of_a_map_is_printed_as_json(moorage, directory):
    _, out, _ = moorage(
        *("state", "get", directory, "visits/by_day", "user-3"),
        *("--map-key", "2026-01-04", "-o", "json"),
    )
    document = result(out)
    assert document["value"] == [{"key": "2026-01-04", "value": 3.5}]
    assert document["found"] is True


PAGE = (Path(__file__).parents[3] / "docs" / "cli.md").read_text()


def test_the_page_shows_what_state_get_prints_as_json(moorage, directory):
    (shown,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    _, out, _ = moorage("state", "get", directory, "visits/visit", "user-3", "-o", "json")
    assert list(json.loads(shown).items()) == list(json.loads(out).items())


@pytest.mark.parametrize(
    ("name", "kind"), [("pages", "list"), ("by_day", "map"), ("_timers", "timers")]
)
def test_the_page_names_the_form_of_each_kind_of_state(moorage, directory, name, kind):
    _, out, _ = moorage("state", "get", directory, f"visits/{name}", "user-4", "-o", "json")
    document = result(out)
    assert document["kind"] == kind
    assert isinstance(document["value"], list)
    assert f"| `{kind}` | a list of" in PAGE


def test_a_key_that_has_nothing_is_a_document_all_the_same(moorage, directory):
    _, out, _ = moorage("state", "get", directory, "visits/visit", "nobody", "-o", "json")
    document = result(out)
    assert (document["found"], document["value"]) == (False, None)


def test_a_key_that_has_nothing_prints_nothing(moorage, directory):
    status, out, err = moorage("state", "get", directory, "visits/visit", "nobody")
    assert (status, out) == (0, "")
    assert "the key has nothing here: state=visits/visit key=nobody" in err


def test_a_key_that_begins_with_a_dash_comes_after_two(moorage, directory):
    status, _, err = moorage("state", "get", directory, "visits/visit", "--", "-7")
    assert status == 0
    assert "key=-7" in err


def test_counts_are_exact_and_by_key_group_on_request(moorage, directory):
    status, out, _ = moorage("state", "count", directory, "visits")
    assert status == 0
    assert "visits/visit      41    41\n" in out
    _, out, _ = moorage("state", "count", directory, "visits/visit", "--by-group", "-o", "json")
    (one,) = result(out)["states"]
    assert sum(group["keys"] for group in one["groups"]) == one["keys"] == 41
    _, out, _ = moorage("state", "count", directory, "visits/visit", "--by-group")
    assert "KEY GROUP OF visits/visit" in out


def test_a_state_is_exported_to_a_file(moorage, directory, tmp_path):
    target = tmp_path / "out.csv"
    status, out, _ = moorage("state", "export", directory / "chk-2", "visits/visit", target)
    assert status == 0
    assert "exported  40 rows" in out
    with target.open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 40
    status, _, err = moorage("state", "export", directory, "visits/visit", target)
    assert status == 2
    assert "pass --force" in err
    status, out, _ = moorage(
        "state", "export", directory, "visits/visit", target, "--force", "-o", "json"
    )
    assert (status, result(out)["rows"]) == (0, 41)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["get", "{dir}", "visits/seen", "k"], 2, "there are: visits/visit, visits/pages"),
        (["get", "{dir}", "visits", "k"], 2, "name one state of the operator"),
        (["get", "{dir}", "visits/by_day", "k", "--map-key", "x"], 2, "write 2026-01-31"),
        (["get", "{dir}", "clicks/visit", "k"], 2, "there are: visits"),
        (["count", "{dir}", "clicks"], 2, "there are: visits"),
        (["export", "{dir}", "visits/visit", "{dir}/x.txt"], 2, "end it in .parquet"),
        (["export", "{dir}", "visits/visit", "{dir}/gone/x.csv"], 7, "a directory that exists"),
        (["ls", "{dir}/chk-9"], 2, "retained are: chk-3, chk-2"),
        (["ls", "{dir}-gone"], 2, "of this name"),
    ],
)
def test_what_is_typed_wrong_is_answered_with_what_to_do(
    moorage, directory, arguments, status, message
):
    found, out, err = moorage("state", *(a.format(dir=directory) for a in arguments))
    assert (found, out) == (status, "")
    assert message in err
    assert "Traceback" not in err


def test_damaged_state_is_status_5(moorage, directory):
    for path in (directory / "shared").iterdir():
        path.write_bytes(b"")
    assert moorage("state", "count", directory, "visits")[0] == 5
