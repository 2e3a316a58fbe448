"""Examples of one idea each: run as whole jobs without Spark, or as a person would."""

import importlib
import itertools
import json
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from moorage_testing.pages import blocks

from moorage.state import read
from moorage.testing import KeyedHarness, run_job
from moorage.testing.environment import TestEnvironment
from moorage_api.manifest import parse_manifest

EXAMPLES = Path(__file__).parents[3] / "examples"
FOLDERS = sorted(path.name for path in EXAMPLES.iterdir() if (path / "README.md").is_file())
MANIFESTS = sorted(str(path.relative_to(EXAMPLES)) for path in EXAMPLES.glob("*/job*.yaml"))
# Those make their input, of any size, by a script that the README has people call.
MADE = {"flights": "prepare.py", "nexmark": "events.py"}
NO_FILES = {"kafka", "ticker"}
MINUTE = 60_000
TEN = 1_767_261_600_000  # o'clock, on the day of the samples


@pytest.fixture
def example(monkeypatch):
    """Imports a module of an example, which finds those beside it."""
    before = set(sys.modules)

    def load(folder, name="job"):
        monkeypatch.syspath_prepend(str(EXAMPLES / folder))
        return importlib.import_module(name)

    yield load
    for name in set(sys.modules) - before:
        if str(EXAMPLES) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def at(ms):
    return datetime.fromtimestamp(ms / 1000, UTC)


def test_clicks_with_short_pauses_are_one_visit_in_the_order_of_time(example):
    clicks = [
        ("ann", "/", at(0)),
        ("ann", "/buy", at(20 * MINUTE)),
        ("ann", "/cart", at(10 * MINUTE)),
        ("ann", "/", at(60 * MINUTE)),
        ("bob", "/", at(5 * MINUTE)),
    ]
    found = run_job(example("sessions").build, {"clicks": clicks}, args=["in", "out"])["out"]
    assert sorted(found) == [
        ("ann", 0, ["/", "/cart", "/buy"]),
        ("ann", 60 * MINUTE, ["/"]),
        ("bob", 5 * MINUTE, ["/"]),
    ]


def test_a_copy_of_a_payment_goes_aside_until_a_day_is_over(example):
    job = example("dedup")
    found = run_job(job.build, {"payments": [("a", 1), ("b", 2), ("a", 1)]}, args=["in", "out"])
    assert sorted(found["payments-out"]) == [("a", 1), ("b", 2)]
    assert found["copies-out"] == [("a", 1)]
    with KeyedHarness(
        job.First(), job.PAYMENT, "id", job.PAYMENT, side_outputs=[job.COPIES]
    ) as first:
        first.process(("a", 1))
        first.set_processing_time(25 * 60 * MINUTE)
        assert first.process(("a", 1)) == [("a", 1)]


def test_a_click_meets_the_ads_that_were_shown_shortly_before_whichever_row_is_read_first(example):
    shown = [("v1", "shoes", at(0)), ("v1", "hats", at(9 * MINUTE)), ("v2", "shoes", at(0))]
    clicks = [
        ("v1", "/buy", at(10 * MINUTE)),
        ("v1", "/late", at(10 * MINUTE + 1)),
        ("v2", "/before", at(-1)),
    ]
    rows = {"shown": shown, "clicks": clicks}
    apart = [{"clicks": clicks}, {"shown": shown}]
    for inputs in (rows, apart, apart[::-1]):
        found = run_job(example("stream_join").build, inputs, args=["s", "c", "out"])["out"]
        assert sorted((one.visit, one.ad, one.page) for one in found) == [
            ("v1", "hats", "/buy"),
            ("v1", "hats", "/late"),
            ("v1", "shoes", "/buy"),
        ]


@pytest.mark.parametrize(("later", "alerts"), [(59_000, 1), (60_001, 0)])
def test_a_large_payment_soon_after_a_small_one_is_told(example, later, alerts):
    payments = [("card", 0.5, at(0)), ("card", 600.0, at(later)), ("card", 700.0, at(later + 1))]
    found = run_job(example("fraud").build, {"payments": payments}, args=["in", "out"])
    assert found["alerts"] == [("card", 600.0, 0)][:alerts]


def test_the_small_payment_is_forgotten_by_its_timer(example):
    job = example("fraud")
    with KeyedHarness(job.TriedFirst(), job.PAYMENTS, "card", job.ALERT, event_time="at") as cards:
        cards.process(("card", 0.5, at(0)))
        assert cards.keys()
        cards.process_watermark(MINUTE)
        assert not cards.keys()


def test_rules_come_change_and_go_while_payments_do(example):
    pay = [("ann", "FR", 50)]
    epochs = [{"rules": rules, "payments": pay} for rules in ([], [("FR", 40)], [("FR", None)])]
    found = run_job(example("rules").build, epochs, args=["payments", "rules", "out"])
    assert found["out"] == [("ann", "FR", 50, 40)]


def test_state_of_the_last_release_is_read_by_this_one(example):
    before, after = example("schema_change", "job_before"), example("schema_change")
    output = "sensor string, n int"
    with KeyedHarness(
        before.Readings(), "sensor string, value double", "sensor", output
    ) as harness:
        harness.process(("a", 3.5), ("a", 1.5))
        kept = harness.snapshot()
    output = "sensor string, n long, most double"
    with KeyedHarness(
        after.Readings(), "sensor string, value double", "sensor", output, restore=kept
    ) as harness:
        assert harness.process(("a", 2.0)) == [("a", 3, 2.0)]
    rows = {"readings": [("a", 2.0), ("a", 1.0)]}
    assert run_job(before.build, rows, args=["in", "out"])["out"] == [("a", 1), ("a", 2)]
    assert run_job(after.build, rows, args=["in", "out"])["out"] == [("a", 1, 2.0), ("a", 2, 2.0)]


def test_the_model_is_loaded_once_however_many_epochs_there_are(example, monkeypatch):
    job = example("scoring")
    loaded = []

    model: Any = job.Model

    class Counted(model):  # type: ignore[misc]  # the example's
        def __init__(self, path):
            loaded.append(path)
            super().__init__(path)

    monkeypatch.setattr(job, "Model", Counted)
    epochs = [{"payments": [("ann", 400.0)]} for _ in range(3)]
    found = run_job(job.build, epochs, args=["in", "model.json", "out"], parallelism=1)
    assert [round(row.score, 3) for row in found["out"]] == [0.5, 0.378, 0.269]
    assert loaded == [EXAMPLES / "scoring" / "model.json"]


@pytest.fixture
def savepoint(example, tmp_path, monkeypatch):
    """What bootstrap.py makes of a table of three accounts."""
    # As in a checkout, where the notebook lies beside the example that makes the savepoint.
    for folder in ("bootstrap", "savepoints"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / "savepoints")
    table = pa.table({"account": ["ann", "bob", "eve"], "balance": [120, 7, 300]})
    pq.write_table(table, "balances.parquet")
    made = "../bootstrap/savepoints/initial"
    assert example("bootstrap", "bootstrap").bootstrap("balances.parquet", made) == 3
    return made


def test_a_table_becomes_the_state_that_the_job_asks_for(example, savepoint):
    job = example("bootstrap")
    found = read(savepoint, job.UID, job.BALANCE.name)
    assert sorted(zip(found["key"].to_pylist(), found["value"].to_pylist(), strict=True)) == [
        ("ann", 120),
        ("bob", 7),
        ("eve", 300),
    ]
    paid = {"payments": [("ann", 5), ("new", 1)]}
    assert sorted(run_job(job.build, paid, args=["in", "out"])["out"]) == [("ann", 5), ("new", 1)]


def test_the_table_beside_the_job_becomes_a_savepoint(example, tmp_path):
    bootstrap = example("bootstrap", "bootstrap").bootstrap
    assert bootstrap(str(EXAMPLES / "bootstrap" / "balances.csv"), f"{tmp_path}/made") == 20
    found = read(f"{tmp_path}/made", "accounts", "balance").to_pydict()
    assert dict(zip(found["key"], found["value"], strict=True))["ann"] == 68


def test_duckdb_reads_a_savepoint(example, savepoint):
    query = example("savepoints", "query")
    assert query.largest(savepoint, "accounts", "balance", 2) == [("eve", 300), ("ann", 120)]
    assert sum(n for _, n in query.by_key_group(savepoint, "accounts", "balance")) == 3


@pytest.mark.usefixtures("savepoint")
def test_the_notebook_runs_and_draws(capsys):
    mpl.use("agg")
    plt = importlib.import_module("matplotlib.pyplot")
    notebook = json.loads((EXAMPLES / "savepoints" / "plot.ipynb").read_text())
    names: dict[str, object] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            exec("".join(cell["source"]), names)  # noqa: S102  our own notebook
    assert "accounts balance value bigint" in capsys.readouterr().out
    assert [axis.get_title() for axis in plt.gcf().axes] == [
        "accounts/balance",
        "keys by key group",
    ]
    plt.close("all")


@pytest.mark.parametrize("manifest", MANIFESTS)
def test_the_manifest_beside_a_job_is_good_and_names_it(manifest):
    path = EXAMPLES / manifest
    job = parse_manifest(path.read_bytes(), manifest)
    assert job.spec.application.main_path(path.parent).is_file()
    assert job.name in {path.parent.name.replace("_", "-"), "kafka-counts"}


def test_every_example_has_a_readme_with_commands_and_is_listed():
    folders = {path.name for path in EXAMPLES.iterdir() if path.is_dir()} - {"__pycache__"}
    assert {*FOLDERS} == folders
    assert [one for one in FOLDERS if not blocks(f"examples/{one}/README.md", "sh")] == []
    index = (EXAMPLES / "README.md").read_text()
    assert {*re.findall(r"^\| \[\w+\]\((\w+)/\)", index, re.MULTILINE)} == folders


class Asked(TestEnvironment):
    """Keeps by uid of an input the folder that it is read from."""

    def __init__(self, args=()):
        super().__init__(args)
        self.paths = {}

    def read_stream(self, uid, format, *, path=None, **options):  # noqa: A002 - as its parent
        self.paths |= {} if path is None else {uid: path}
        return super().read_stream(uid, format, path=path, **options)


def clock(hour, minute=0):
    return at(TEN + ((hour - 10) * 60 + minute) * MINUTE)


SAMPLES = {
    "backends/job.yaml": {"payments-out": [("a", 5), ("b", 7)], "copies-out": [("a", 5)]},
    "bootstrap/job.yaml": {"out": [("ann", 5), ("new", 1)]},
    "dedup/job.yaml": {"payments-out": [("a", 5), ("b", 7)], "copies-out": [("a", 5)]},
    "fraud/job.yaml": {"alerts": [("4711", 600.0, TEN)]},
    "rules/job.yaml": {"out": [("ann", "FR", 50, 40)]},
    "schema_change/job.yaml": {
        "out": [("cellar", 1, 11.0), ("kitchen", 1, 20.5), ("kitchen", 2, 21.0)]
    },
    "schema_change/job_before.yaml": {"out": [("cellar", 1), ("kitchen", 1), ("kitchen", 2)]},
    "scoring/job.yaml": {
        "out": [("ann", 400.0, 0.377541), ("ann", 400.0, 0.5), ("bob", 20.0, 0.021881)]
    },
    "sessions/job.yaml": {
        "out": [
            ("ann", TEN, ["/", "/cart", "/buy"]),
            ("ann", TEN + 90 * MINUTE, ["/"]),
            ("bob", TEN + 5 * MINUTE, ["/"]),
        ]
    },
    "sinks/job.yaml": {"counts": [("ann", 1), ("ann", 2), ("bob", 1)]},
    "stream_join/job.yaml": {
        "out": [
            ("v1", "hats", "/buy", clock(10, 10)),
            ("v1", "shoes", "/buy", clock(10, 10)),
        ]
    },
    "windows/job.yaml": {
        "hourly-out": [
            ("A", clock(10), clock(11), 3, 32.0, 12.0),
            ("A", clock(11), clock(12), 1, 9.0, 9.0),
            ("A", clock(12), clock(13), 1, 5.0, 5.0),
            ("B", clock(10), clock(11), 1, 20.0, 20.0),
            ("B", clock(11), clock(12), 1, 30.0, 30.0),
        ],
        "late-out": [("t6", "A", clock(10, 50), 7.0)],
        "spells-out": [
            ("A", clock(10), clock(10, 30), 3),
            ("A", clock(11, 20), clock(11, 40), 1),
            ("A", clock(12, 30), clock(12, 50), 1),
            ("B", clock(10, 30), clock(10, 50), 1),
            ("B", clock(11, 45), clock(12, 5), 1),
        ],
        "dearest-out": [  # a taxi's list anew whenever it is another one
            ("t1", "A", clock(10), 12.0, 1),
            ("t1", "A", clock(10), 12.0, 1),
            ("t2", "A", clock(10, 10), 8.0, 2),
            ("t2", "A", clock(10, 10), 8.0, 3),
            ("t3", "B", clock(10, 30), 20.0, 1),
            ("t3", "B", clock(10, 30), 20.0, 2),
            ("t4", "A", clock(11, 20), 9.0, 2),
            ("t5", "B", clock(11, 45), 30.0, 1),
        ],
    },
}


@pytest.mark.parametrize("name", MADE)
def test_input_that_a_script_makes_is_made_as_the_readme_says(name):
    assert MADE[name] in "".join(one.code for one in blocks(f"examples/{name}/README.md", "sh"))


@pytest.mark.parametrize(
    "manifest", [one for one in MANIFESTS if not one.startswith((*MADE, *NO_FILES))]
)
def test_the_input_of_an_example_is_there_and_gives_what_its_readme_says(example, manifest):
    folder = EXAMPLES / Path(manifest).parent
    job = parse_manifest((EXAMPLES / manifest).read_bytes(), manifest)
    main, args = job.spec.application.main_path(folder), tuple(job.spec.application.args)
    build = example(main.parent.name, main.stem).build
    build(asked := Asked(args))
    inputs = {uid: main.parent / path for uid, path in asked.paths.items()}
    found = run_job(build, list(epochs(inputs)), args=args)
    assert {uid: sorted(rows) for uid, rows in found.items()} == SAMPLES[manifest]


def epochs(folders):
    """The files 1.json of all inputs, then the files 2.json: rows with their times as such."""
    for number in itertools.count(1):
        files = {uid: folder / f"{number}.json" for uid, folder in folders.items()}
        if not any(file.is_file() for file in files.values()):
            assert number > 1, f"an example without input: {folders}"
            return
        yield {uid: list(rows_of(file)) for uid, file in files.items() if file.is_file()}


def rows_of(file):
    for line in file.read_text().splitlines():
        row = json.loads(line)
        yield {**row, "at": datetime.fromisoformat(row["at"])} if "at" in row else row
