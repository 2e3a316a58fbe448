"""The right answer, computed with pandas, and how an engine's answer is compared with it.

A figure counts only if the answer that came with it is right.
"""

import pandas as pd

__all__ = ["WrongAnswerError", "check_final", "check_running", "expected"]


class WrongAnswerError(Exception):
    """An engine's answer is not the right one; the message says where it differs."""


def expected(rows: pd.DataFrame) -> pd.DataFrame:
    """Columns count and sum, by key in ascending order, of `rows` with columns key and value."""
    answer = rows.groupby("key", sort=True)["value"].agg(["count", "sum"])
    return answer.astype("int64")


def check_final(right: pd.DataFrame, answer: pd.DataFrame) -> None:
    """Compare the last state of every key.

    Args:
        right: what `expected` returned.
        answer: columns key, count and sum, one row for each key, in any order.

    Raises:
        WrongAnswerError: keys are missing, surplus or doubled, or one has another count or sum.
    """
    if answer["key"].duplicated().any():
        raise WrongAnswerError("a key has two states")
    got = answer.set_index("key").sort_index()[["count", "sum"]]
    if not right.index.equals(got.index):
        missing, surplus = right.index.difference(got.index), got.index.difference(right.index)
        raise WrongAnswerError(
            f"other keys than the input's: missing={len(missing)} surplus={len(surplus)} "
            f"first={[*missing[:1], *surplus[:1]]}"
        )
    differs = (right.to_numpy() != got.to_numpy()).any(axis=1)
    if differs.any():
        key = right.index[differs][0]
        raise WrongAnswerError(
            f"keys with a wrong count or sum: keys={int(differs.sum())} first={key} "
            f"right={right.loc[key].tolist()} got={got.loc[key].tolist()}"
        )


def check_running(right: pd.DataFrame, output: pd.DataFrame) -> None:
    """Compare the output of a job that emits the new count and sum after every single row.

    Args:
        right: what `expected` returned.
        output: all rows that were published, in any order.

    Raises:
        WrongAnswerError: rows are missing or doubled, or the last one of a key is not right.
    """
    emitted = output.groupby("key", sort=True)["count"].agg(["size", "max", "nunique"])
    whole = (emitted["size"] == emitted["max"]) & (emitted["nunique"] == emitted["max"])
    if not whole.all():
        key = emitted.index[~whole][0]
        raise WrongAnswerError(
            f"rows of a key are missing or doubled: keys={int((~whole).sum())} first={key} "
            f"rows={emitted['size'][key]} highest={emitted['max'][key]}"
        )
    check_final(right, output.loc[output.groupby("key")["count"].idxmax()])
