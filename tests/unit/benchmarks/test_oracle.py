import pandas as pd
import pytest
from benchmarks.oracle import WrongAnswerError, check_final, check_running, expected

ROWS = pd.DataFrame({"key": [7, 5, 7, 7], "value": [1, 2, 3, 10]})
FINAL = pd.DataFrame({"key": [7, 5], "count": [3, 1], "sum": [14, 2]})
RUNNING = pd.DataFrame({"key": [7, 5, 7, 7], "count": [1, 1, 2, 3], "sum": [1, 2, 4, 14]})


def test_the_right_answer_counts_and_sums_by_key():
    assert expected(ROWS).reset_index().to_dict("list") == {
        "key": [5, 7],
        "count": [1, 3],
        "sum": [2, 14],
    }


def test_a_right_final_answer_passes_in_any_order():
    check_final(expected(ROWS), FINAL.iloc[::-1])


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (FINAL.iloc[:1], "missing=1 surplus=0"),
        (pd.concat([FINAL, FINAL.assign(key=[8, 9])]), "missing=0 surplus=2"),
        (pd.concat([FINAL, FINAL]), "two states"),
        (FINAL.assign(count=[3, 2]), r"keys=1 first=5 right=\[1, 2\] got=\[2, 2\]"),
        (FINAL.assign(sum=[14, 3]), "keys=1 first=5"),
    ],
)
def test_a_wrong_final_answer_says_where_it_differs(answer, message):
    with pytest.raises(WrongAnswerError, match=message):
        check_final(expected(ROWS), answer)


def test_right_running_output_passes_in_any_order():
    check_running(expected(ROWS), RUNNING.sample(frac=1.0, random_state=1))


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (RUNNING.drop(index=2), "missing or doubled"),
        (RUNNING.drop(index=3), "wrong count or sum"),
        (pd.concat([RUNNING, RUNNING.iloc[2:3]]), "missing or doubled"),
        (RUNNING.replace({"count": {2: 1}}), "missing or doubled"),
        (RUNNING.replace({"sum": {14: 13}}), "wrong count or sum"),
        (RUNNING[RUNNING["key"] == 7], "missing=1"),
    ],
)
def test_wrong_running_output_is_found(output, message):
    with pytest.raises(WrongAnswerError, match=message):
        check_running(expected(ROWS), output)
