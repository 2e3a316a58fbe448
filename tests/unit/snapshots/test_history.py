from datetime import UTC, datetime

import msgspec
import pytest

from moorage_state.errors import UserError
from moorage_state.snapshots import (
    Checkpoint,
    Entry,
    Fence,
    Finished,
    Owner,
    Released,
    Rescaled,
    Retire,
    Run,
    Savepoint,
    Unknown,
    finished_with,
    parallelism_of,
    restore_point,
    retained,
)
from moorage_state.snapshots.history import lines_of, next_checkpoint_id, restore_points

AT = datetime(2026, 1, 2, tzinfo=UTC)
OWNER = Owner("c", "n", "j", "u", "l")


def chk(checkpoint_id: int) -> Checkpoint:
    return Checkpoint(1, 0, checkpoint_id, f"chk-{checkpoint_id}/MANIFEST", "sha256:0", 1, AT)


def back_to(path: str | None) -> Run:
    return Run(1, 1, path, explicit=True, restore_nonce=1)


def paths(entries: list[Entry]) -> list[str]:
    return [point.path for point in restore_points(entries)]


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([], []),
        ([OWNER, Fence(1, "x"), Run(1, 0)], []),
        ([chk(1), chk(2)], ["chk-2", "chk-1"]),
        ([chk(1), chk(2), Retire(1, 1)], ["chk-2"]),
        ([chk(1), chk(2), Retire(1, 2)], ["chk-1"]),
        ([chk(1), chk(2), Run(2, 0, "chk-1")], ["chk-2", "chk-1"]),
        ([chk(1), chk(2), chk(3), back_to("chk-2")], ["chk-2", "chk-1"]),
        ([chk(1), chk(2), chk(3), back_to("chk-2/MANIFEST")], ["chk-2", "chk-1"]),
        ([chk(1), chk(2), chk(3), back_to("chk-2"), chk(4)], ["chk-4", "chk-2", "chk-1"]),
        ([chk(1), chk(2), back_to("chk-1"), back_to("chk-2")], ["chk-2"]),
        ([chk(1), back_to("file:///savepoint")], ["file:///savepoint"]),
        ([chk(1), back_to("file:///savepoint"), chk(2)], ["chk-2", "file:///savepoint"]),
        ([chk(1), back_to(None)], []),
        ([chk(1), back_to(None), chk(2)], ["chk-2"]),
        ([chk(1), back_to("chk-1"), chk(2), Retire(1, 2)], ["chk-1"]),
        ([chk(1), Unknown("?hint", {}), Unknown("?epoch", {}), Released(1)], ["chk-1"]),
    ],
)
def test_where_a_start_restores_from(entries: list[Entry], expected: list[str]) -> None:
    assert paths(entries) == expected
    point = restore_point(entries)
    assert (point.path if point else None) == (expected[0] if expected else None)


@pytest.mark.parametrize(
    ("entries", "last"),
    [
        ([], None),
        ([chk(1)], None),
        ([chk(1), Retire(1, 1)], None),
        ([chk(1), chk(2), Finished(1), Retire(1, 1), Retire(1, 2), Fence(2, "x")], chk(2)),
        ([chk(1), Finished(1), Run(2, 0, "chk-1")], None),
        ([chk(1), Finished(1), Run(2, 0), chk(2), Finished(2)], chk(2)),
    ],
)
def test_a_job_has_finished_until_it_runs_again(
    entries: list[Entry], last: Checkpoint | None
) -> None:
    assert finished_with(entries) == last


def test_the_point_tells_the_log_entry_and_who_chose_it() -> None:
    chosen = restore_point([chk(1), chk(2), back_to("chk-1")])
    assert chosen is not None
    assert (chosen.checkpoint, chosen.explicit) == (chk(1), True)
    latest = restore_point([chk(1), chk(2)])
    assert latest is not None
    assert (latest.checkpoint, latest.explicit) == (chk(2), False)


@pytest.mark.parametrize(
    "entries",
    [
        [chk(1), Retire(1, 1)],
        [chk(1), chk(2), Retire(1, 1), Retire(1, 2)],
        [chk(1), chk(2), back_to("chk-1"), Retire(1, 1)],
    ],
)
def test_state_whose_checkpoints_are_all_retired_does_not_become_empty(
    entries: list[Entry],
) -> None:
    with pytest.raises(UserError, match="retired"):
        restore_point(entries)


def test_retained_are_the_checkpoints_that_exist_newest_first() -> None:
    entries: list[Entry] = [chk(1), chk(2), chk(3), Retire(1, 2), back_to("chk-1"), chk(4)]
    assert [c.checkpoint_id for c in retained(entries)] == [4, 3, 1]


def test_checkpoint_ids_only_grow() -> None:
    assert next_checkpoint_id([]) == 1
    assert next_checkpoint_id([chk(3), Retire(1, 3), chk(4), Retire(1, 4)]) == 5
    newer_copy = Run(1, 1, "file:///copy", explicit=True, restored_id=9)
    assert next_checkpoint_id([chk(3), newer_copy]) == 10


@pytest.mark.parametrize(
    ("entries", "declared", "expected"),
    [
        ([OWNER, chk(1)], 2, 2),
        ([chk(1), Rescaled(1, 1, 1, 4, 2)], 2, 4),
        ([chk(1), Rescaled(1, 1, 1, 4, 2), Fence(2, "x"), Run(2, 0, "chk-1")], 2, 4),
        ([Rescaled(1, 1, 1, 4, 2), Rescaled(1, 2, 2, 3, 2)], 2, 3),
        ([Rescaled(1, 1, 1, 4, 2)], 8, 8),
        ([Rescaled(1, 1, 1, 4, 2), Rescaled(2, 0, 1, 8, 8)], 2, 2),
        ([Rescaled(1, 1, 1, 4, 2), Rescaled(2, 0, 1, 8, 8)], 8, 8),
    ],
)
def test_what_was_decided_while_a_job_ran_counts_until_its_manifest_says_something_else(
    entries: list[Entry], declared: int, expected: int
) -> None:
    assert parallelism_of(entries, declared) == expected


class Epoch(int):
    """One that counts how often it is compared."""

    compared = 0

    def __lt__(self, other: int) -> bool:
        Epoch.compared += 1
        return int(self) < other

    def __le__(self, other: int) -> bool:
        Epoch.compared += 1
        return int(self) <= other

    def __gt__(self, other: int) -> bool:
        Epoch.compared += 1
        return int(self) > other

    def __ge__(self, other: int) -> bool:
        Epoch.compared += 1
        return int(self) >= other


def saved_as_often(number: int) -> list[Entry]:
    """A run with so many checkpoints, and a savepoint after each, which the next one overtook."""
    entries: list[Entry] = [Fence(1, "h"), OWNER, Run(1, 0, None)]
    for step in range(number):
        first, epoch = 3 * step + 1, 10 * step
        entries += [
            msgspec.structs.replace(chk(first), epoch=epoch),
            msgspec.structs.replace(chk(first + 2), epoch=epoch + 9),
            Savepoint(1, 0, first + 1, f"s3://s/{step}", "", Epoch(epoch + 4), AT),
        ]
    return entries


def test_what_a_savepoint_follows_is_found_near_the_end_of_its_run() -> None:
    """However long that is: a log of many savepoints would be walked for hours."""
    Epoch.compared = 0
    lines = lines_of(saved_as_often(500), [1499])
    assert lines[1499][-3:] == (1497, 1498, 1499)
    assert Epoch.compared < 5 * 500
