"""Tests of a job's functions without Spark and without Java; see docs/testing.md.

The plugin of pytest is in this package, and is loaded wherever Moorage is installed: with the
operator alone, too, which brings no Spark. So names are imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moorage.testing.in_process import Snapshot as Snapshot
    from moorage.testing.keyed_harness import KeyedHarness as KeyedHarness
    from moorage.testing.keyed_harness import SecondStream as SecondStream
    from moorage.testing.replay import NotDeterministic as NotDeterministic
    from moorage.testing.whole_job import run_job as run_job

_HOME_OF = {
    "KeyedHarness": "moorage.testing.keyed_harness",
    "NotDeterministic": "moorage.testing.replay",
    "SecondStream": "moorage.testing.keyed_harness",
    "Snapshot": "moorage.testing.in_process",
    "run_job": "moorage.testing.whole_job",
}

__all__ = [*_HOME_OF]  # noqa: PLE0604  names, which are strings


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)
