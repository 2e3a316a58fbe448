"""How pytest's processes share the collection."""

from pathlib import Path

from moorage_testing.turns import PAGES, from_another_place, turn_of

ROOT = Path(__file__).parents[3]


def test_each_process_collects_every_file_once_and_begins_where_no_other_does():
    lists = [from_another_place(["tests"], ROOT, number, 3) for number in range(3)]
    assert [sorted(one) for one in lists] == [sorted(lists[0])] * 3
    assert len(set(lists[0])) == len(lists[0])
    assert len({one[0] for one in lists}) == 3
    assert str(Path(__file__).relative_to(ROOT)) in lists[0]


def test_the_order_of_turns_is_the_same_in_whatever_order_files_were_found():
    files = ["tests/spark/b.py::two", "tests/chaos/a.py::one", "tests/spark/jobs/a.py::one"]
    files += ["tests/unit/a.py::one", "tests/unit/b.py::one"]
    for found in (files, files[::-1], files[2:] + files[:2]):
        assert sorted(found, key=turn_of) == files


def test_of_the_tests_on_a_cluster_those_that_install_an_operator_for_all_go_first():
    found = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("tests/e2e/test_*.py")]
    assert min(found, key=turn_of) == PAGES
