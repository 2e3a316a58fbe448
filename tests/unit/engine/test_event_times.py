"""What a subtask sees of event time, of each input and of each value it counts by."""

# ruff: noqa: ARG002 - functions have the signature that the API gives them

import pyarrow as pa
import pytest

from moorage.api.functions import KeyedProcessFunction
from moorage.engine import event_time
from moorage.engine.task_failures import SubtaskFailure
from moorage_state.errors import UserError

STREAM = pa.schema([("user", pa.string()), ("n", pa.int64()), ("part", pa.string())])


class Nothing(KeyedProcessFunction):
    def process(self, row, ctx):
        return None


def seen(operator, *batches, per, **changes):
    return operator.attempt(Nothing(), list(batches), per=per, **changes).ack


def test_the_newest_time_of_each_value_is_observed(operator, batch):
    rows = batch(
        ("a", 1, "x", 7), ("a", 2, "y", 3), ("b", 3, "x", 9), (None, 4, None, 5), stream=STREAM
    )
    more = batch(("c", 5, "y", 4), ("c", 6, "z", None), ("c", 7, None, -1), stream=STREAM)
    ack = seen(operator, rows, more, per=("part",))
    assert ack.value_times == {"clicks": {"x": 9, "y": 4, None: 5}}
    assert ack.max_event_time == {}


def test_integers_are_values_by_their_digits(operator, batch):
    rows = batch(("a", 1, 7), ("a", -2, 9), ("b", 1, 8))
    assert seen(operator, rows, per=("n",)).value_times == {"clicks": {"1": 8, "-2": 9}}


def test_each_input_counts_by_its_own_column_or_as_one(operator, batch):
    rows = pa.concat_batches(
        [
            batch(("a", 1, "x", 7), stream=STREAM),
            batch(("a", 2, "y", 8), stream=STREAM, source=1),
            batch(("a", 3, "z", 9), stream=STREAM, source=2),
        ]
    )
    ack = seen(operator, rows, per=("part", "", "n"), inputs=("clicks", "views", "likes"))
    assert ack.max_event_time == {"views": 8}
    assert ack.value_times == {"clicks": {"x": 7}, "likes": {"3": 9}}


def test_too_many_values_of_one_subtask_are_refused(operator, batch, monkeypatch):
    monkeypatch.setattr(event_time, "MAX_VALUES", 2)
    rows = batch(*(("a", n, n) for n in range(3)))
    with pytest.raises(
        SubtaskFailure, match="too many values: input=clicks per=n values=3"
    ) as error:
        seen(operator, rows, per=("n",))
    assert error.value.code == UserError.code


def test_where_all_rows_come_in_one_epoch_there_may_be_any_number_of_values(
    operator, batch, monkeypatch
):
    monkeypatch.setattr(event_time, "MAX_VALUES", 2)
    rows = batch(*(("a", n, n) for n in range(3)))
    ack = seen(operator, rows, per=("n",), batch=True)
    assert ack.value_times == {}
    assert ack.rows_in == 3
