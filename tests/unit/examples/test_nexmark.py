"""examples/nexmark: each query over a few thousand events is what its definition says."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from moorage_testing.example_scripts import scripts_of

from moorage.api.declarations import arrow_schema, columns_of
from moorage.testing import run_job

NEXMARK = Path(__file__).parents[3] / "examples" / "nexmark"
SOLD, SELLERS = {"auctions", "bids"}, {"persons", "auctions"}
READS = {f"q{n}": {"bids"} for n in (0, 1, 2, 5, 7)}
READS |= {"q3": SELLERS, "q4": SOLD, "q6": SOLD, "q8": SELLERS}
QUERIES = sorted(READS)
EVENTS = 3_500
SPEEDS = {
    "bids are slow": {"persons": 2, "auctions": 3, "bids": 6},
    "bids are ahead": {"persons": 6, "auctions": 5, "bids": 2},
}


@pytest.fixture(scope="module")
def modules():
    """The example's modules, which are scripts beside each other and no package."""
    with scripts_of(NEXMARK) as load:
        yield tuple(map(load, ("events", "queries", "oracle")))


@pytest.fixture(scope="module")
def seen(modules):
    return modules[0].generate(EVENTS)


def test_events_are_out_of_order_within_their_bound_and_some_are_hot(modules, seen):
    events, _, _ = modules
    for some in seen.values():
        times = [event.at for event in some]
        newest = times[0]
        assert times != sorted(times)
        for at in times:
            newest = max(newest, at)
            assert at >= newest - events.DISORDER_MS
    sold = [bid.auction for bid in seen["bids"]]
    assert max(map(sold.count, set(sold))) > len(sold) / 10
    assert events.generate(EVENTS) == seen != events.generate(EVENTS, seed=2)


CASES = [(q, speed) for q in QUERIES for speed in SPEEDS if len(READS[q]) == 2 or "slow" in speed]


@pytest.mark.parametrize(("query", "speed"), CASES)
def test_a_query_is_answered_as_it_is_defined_though_it_is_restored_and_rescaled_on_the_way(
    modules, seen, query, speed
):
    events, queries, oracle = modules
    epochs = events.slices({name: seen[name] for name in READS[query]}, SPEEDS[speed])
    numbers = [(2, 2, 3, 1, 4)[n % 5] for n in range(len(epochs))]
    found = run_job(queries.QUERIES[query], epochs, args=["in", "out"], parallelism=numbers)
    expected = oracle.answer(query, seen)
    assert len(expected) > 3
    assert oracle.differences(query, found["out"], expected) == []


def test_files_have_the_columns_that_queries_read(modules, seen, tmp_path):
    events, queries, _ = modules
    events.write(seen, tmp_path, SPEEDS["bids are slow"])
    for name, ddl in queries.SCHEMAS.items():
        declared: Any = columns_of(ddl)
        assert pq.read_table(tmp_path / name).schema.equals(arrow_schema(declared))


def test_the_answer_is_found_in_files_as_it_is_in_rows(modules, seen, tmp_path, capsys):
    events, _, oracle = modules
    events.write(seen, tmp_path / "in", SPEEDS["bids are slow"])
    rows = oracle.answer("q8", oracle.read_events(tmp_path / "in"))
    assert sorted(rows) == sorted(oracle.answer("q8", seen))
    names = ("id", "name", "start")
    pq.write_table(
        pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows]),
        tmp_path / "out.parquet",
    )
    assert oracle.main(["q8", str(tmp_path / "in"), str(tmp_path / "out.parquet")]) == 0
    assert capsys.readouterr().out == f"q8: {len(rows)} rows, all as defined\n"
    assert oracle.main(["q3", str(tmp_path / "in"), str(tmp_path / "out.parquet")]) == 1


@pytest.mark.parametrize("query", QUERIES)
def test_a_row_more_or_less_is_told(modules, seen, query):
    _, _, oracle = modules
    expected = oracle.answer(query, seen)
    if query == "q4":
        row = (*expected[0][:1], expected[0][1] + 1, 1.5)
        assert oracle.differences(query, [row], expected)
        return
    assert oracle.differences(query, expected[1:], expected) == [f"missing 1 of {expected[0]}"]
    assert oracle.differences(query, [*expected, expected[0]], expected)
