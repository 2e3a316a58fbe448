"""The benchmark of Nexmark's queries: a figure only where every row is right."""

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from benchmarks.jobs.nexmark_spark import SPARK
from benchmarks.nexmark import QUERIES, READS, Meter, right_rows

ANSWERS: dict[str, list[Any]] = {
    "q2": [(123, 5), (246, 7)],
    "q7": [(0, 1, 5, 9, 3), (10_000, 1, 6, 9, 10_003)],
}


def write(tmp_path, rows):
    names = [f"c{n}" for n in range(len(rows[0]))]
    table = pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows])
    pq.write_table(table, tmp_path / "out.parquet")
    return tmp_path / "out.parquet"


@pytest.mark.parametrize(
    ("way", "query", "rows"),
    [
        ("moorage", "q2", ANSWERS["q2"]),
        ("moorage", "q7", ANSWERS["q7"]),
        ("spark", "q7", ANSWERS["q7"][:1]),  # its last window stays open
    ],
)
def test_an_answer_that_is_right_counts(tmp_path, way, query, rows):
    assert right_rows(way, query, write(tmp_path, rows), ANSWERS) == len(rows)


@pytest.mark.parametrize(
    ("way", "query", "rows"),
    [
        ("moorage", "q2", ANSWERS["q2"][:1]),
        ("moorage", "q7", ANSWERS["q7"][:1]),
        ("spark", "q2", [*ANSWERS["q2"], (123, 5)]),
        ("spark", "q7", ANSWERS["q7"][1:]),
    ],
)
def test_one_that_is_not_is_refused(tmp_path, way, query, rows):
    with pytest.raises(ValueError, match="wrong rows"):
        right_rows(way, query, write(tmp_path, rows), ANSWERS)


def test_spark_has_all_queries_but_those_that_go_on_from_another_ones_results():
    assert READS.keys() == set(QUERIES)
    assert set(QUERIES) - SPARK.keys() == {"q4", "q6"}


def test_epochs_before_a_third_of_the_files_do_not_count():
    meter = Meter(6)
    for epoch in (1, 2, 4):
        meter.done(epoch)
    with pytest.raises(KeyError):
        meter.spent()
    meter.done(6)
    assert meter.spent()["seconds"] >= 0
