import io

import pytest
from benchmarks.params import Parameters
from benchmarks.report import markdown, run_line, tables
from benchmarks.results import figures
from rich.console import Console

MACHINE = {"date": "2013-01-01 05:15 UTC", "pyspark": "4.3.0"}


@pytest.fixture
def runs(run):
    return [
        run(rate=120_000.0),
        run("tws-rows", rate=5_000.0),
        run(rate=110_000.0, repeat=1),
        run("tws-rows", rate=5_500.0, repeat=1),
        run(shape="eight", rate=200_000.0),
        run("tws-pandas", "eight", error="WrongAnswerError: a key has two states", steady=()),
    ]


def rendered(runs):
    text = io.StringIO()
    console = Console(file=text, width=120)
    for table in tables(figures(runs)):
        console.print(table)
    return text.getvalue()


def test_the_terminal_shows_a_table_for_each_shape(runs):
    text = rendered(runs)
    assert "about one row per key and batch" in text
    assert "about eight rows per key and batch" in text
    assert "115,000" in text
    assert "22.0x (20.0-24.0)" in text


def test_a_single_run_has_no_range(runs):
    assert "200,000 |  |" in markdown(Parameters(), runs, MACHINE)


def test_a_small_ratio_keeps_two_digits(run):
    assert "0.25x" in rendered([run(rate=50_000.0), run("jvm-agg", rate=200_000.0)])


def test_the_markdown_holds_machine_figures_goals_and_every_run(runs):
    text = markdown(Parameters(), runs, MACHINE)
    assert "- pyspark: 4.3.0" in text
    assert "## About one row per key and batch" in text
    assert (
        "- goal reached: 22.0 times transformWithState, rows with about one row per key and batch; "
        "the goal is 20" in text
    )
    assert text.count("answer right on 1,000,000 rows") == 5
    assert text.endswith("a key has two states\n")


def test_the_rows_of_a_markdown_table_are_as_wide_as_its_heading(runs):
    lines = [line for line in markdown(Parameters(), runs, MACHINE).splitlines() if "|" in line]
    assert len({line.count("|") for line in lines}) == 1


def test_the_notes_say_what_was_measured(runs):
    text = markdown(Parameters(rows=1234, checkpoint_seconds=7), runs, MACHINE)
    assert "1,234 rows" in text
    assert "a checkpoint every 7 s" in text


def test_a_run_without_a_figure_says_why(run):
    failed = run("jvm-agg", error="not done after 400 s", steady=())
    assert run_line(failed) == (
        "groupBy.agg, JVM, about one row per key and batch: no figure: not done after 400 s"
    )
