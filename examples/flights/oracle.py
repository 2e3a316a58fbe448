"""What the job must answer, worked out another way: all at once, with pandas, without state.

`logbooks` takes the whole year as one table and computes every entry with sorts, shifts and running
sums; it shares no code with the job. `compare` holds what the job has published against it.
"""

from dataclasses import dataclass

import pandas as pd

__all__ = ["COLUMNS", "Comparison", "compare", "latest", "logbooks"]

COLUMNS = ["tailnum", "entry", "event", "at", "departures", "delay"]
COLUMNS += ["longest_late_run", "last_dest", "visits", "absences"]

_KEY = ["tailnum", "entry"]
_TEN_DAYS = pd.Timedelta(days=10)
_EXAMPLES = 5


def logbooks(departures: pd.DataFrame) -> pd.DataFrame:
    """Return every entry of every aircraft, ordered by aircraft and entry.

    An aircraft is missing when more than ten days pass from a departure to its next one, or else
    to the last departure of any aircraft, where the stream's time ends.
    """
    table = departures.sort_values(["tailnum", "departed"], kind="stable", ignore_index=True)
    missing = _missing_after(table)
    departed = pd.DataFrame(
        {
            "tailnum": table.tailnum,
            "event": "departed",
            "at": table.departed,
            "departures": table.groupby("tailnum").cumcount() + 1,
            "delay": table.groupby("tailnum").delay.cumsum(),
            "longest_late_run": _longest_late_run(table),
            "last_dest": table.dest,
            "visits": table.groupby(["tailnum", "dest"]).cumcount() + 1,
            "absences": missing.groupby(table.tailnum).cumsum() - missing.astype(int),
        }
    )
    absent = departed[missing].assign(event="missing", at=lambda t: t["at"] + _TEN_DAYS)
    absent["absences"] += 1
    entries = pd.concat([departed, absent])
    entries["entry"] = entries.departures + entries.absences
    return entries.sort_values(_KEY, ignore_index=True)[COLUMNS]


def latest(entries: pd.DataFrame) -> pd.DataFrame:
    """Return the last entry of each aircraft: its logbook as it stands."""
    return entries.sort_values(_KEY).groupby("tailnum").tail(1).reset_index(drop=True)


def _missing_after(table: pd.DataFrame) -> pd.Series:
    """Whether the aircraft was not seen for more than ten days after the departure."""
    end_of_stream = table.departed.max()
    seen_again = table.groupby("tailnum").departed.shift(-1)
    return table.departed + _TEN_DAYS < seen_again.fillna(end_of_stream)


def _longest_late_run(table: pd.DataFrame) -> pd.Series:
    """The longest run of late departures so far: within each stretch without a punctual one."""
    late = table.delay > 0
    stretch = (~late).groupby(table.tailnum).cumsum()
    run = late.astype(int).groupby([table.tailnum, stretch]).cumsum()
    return run.groupby(table.tailnum).cummax()


@dataclass(frozen=True, slots=True)
class Comparison:
    """How published entries differ from expected ones.

    Attributes:
        expected: entries there should be.
        published: entries there are.
        missing: expected and not published.
        surplus: published and not expected.
        twice: published more often than once, counted without the first time.
        different: published once, with another content.
        aircraft: aircraft there should be.
        wrong_aircraft: aircraft with any of these differences, in order.
        examples: a few differences, in words.
    """

    expected: int
    published: int
    missing: int
    surplus: int
    twice: int
    different: int
    aircraft: int
    wrong_aircraft: tuple[str, ...]
    examples: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """Whether every entry was published exactly once and as expected."""
        return not self.wrong_aircraft


def compare(published: pd.DataFrame, expected: pd.DataFrame) -> Comparison:
    """Compare entries, whatever their order."""
    twice = published.duplicated(_KEY)
    both = expected.merge(
        published[~twice],
        on=_KEY,
        how="outer",
        suffixes=("_expected", "_published"),
        indicator="in",
    )
    missing, surplus = both["in"] == "left_only", both["in"] == "right_only"
    different = ~missing & ~surplus & _any_difference(both)
    wrong = both[missing | surplus | different]
    shown = wrong.head(_EXAMPLES).convert_dtypes()
    return Comparison(
        expected=len(expected),
        published=len(published),
        missing=int(missing.sum()),
        surplus=int(surplus.sum()),
        twice=int(twice.sum()),
        different=int(different.sum()),
        aircraft=expected.tailnum.nunique(),
        wrong_aircraft=tuple(sorted({*wrong.tailnum, *published[twice].tailnum})),
        examples=tuple(_in_words(row) for _, row in shown.iterrows()),
    )


def _any_difference(both: pd.DataFrame) -> pd.Series:
    values = [name for name in COLUMNS if name not in _KEY]
    differences = [both[f"{name}_expected"] != both[f"{name}_published"] for name in values]
    return pd.concat(differences, axis="columns").any(axis="columns")


def _in_words(row: pd.Series) -> str:
    where = f"aircraft {row.tailnum}, entry {row.entry}"
    if row["in"] == "left_only":
        return f"{where}: was not published"
    if row["in"] == "right_only":
        return f"{where}: should not be there"
    values = [name for name in COLUMNS if name not in _KEY]
    differences = [
        f"{name} is {row[f'{name}_published']}, should be {row[f'{name}_expected']}"
        for name in values
        if row[f"{name}_expected"] != row[f"{name}_published"]
    ]
    return f"{where}: {'; '.join(differences)}"
