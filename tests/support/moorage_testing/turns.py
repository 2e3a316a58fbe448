"""Which of pytest's processes runs what, and when."""

from pathlib import PurePath

from xdist.scheduler import LoadFileScheduling

__all__ = ["Turns", "turn_of"]

SESSION = "tests/spark"
"""The folder whose own files share a session of Spark; those in folders below it do not."""

ALONE = ("tests/chaos", f"{SESSION}/")
"""Where the tests are that run jobs in processes of their own."""


class Turns(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """A file's tests run in one process, and all that share the session of Spark do.

    A session costs what a dozen epochs cost.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = PurePath(nodeid.partition("::")[0])
        return SESSION if str(file.parent) == SESSION else str(file)


def turn_of(nodeid: str) -> int:
    """What takes longest has the first turn, so that no process still has minutes in the end."""
    file = PurePath(nodeid.partition("::")[0])
    if str(file.parent) == SESSION:
        return 0
    return 1 if str(file).startswith(ALONE) else 2
