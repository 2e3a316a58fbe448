"""Functions that live as long as their worker: which instance a subtask runs.

A worker has at most one of an operator, whichever of its subtasks it runs. An instance is out of
here while it runs, and comes back only from an attempt that succeeded: nothing that a failure left
behind goes on. Called by the subtask, and at its end by who runs a job in one process.
"""

import logging
from typing import Any, NamedTuple

from moorage.api.functions import KeyedProcessFunction, WorkerContext
from moorage.engine.subtask_plan import SubtaskPlan

_log = logging.getLogger(__name__)


class _Kept(NamedTuple):
    run: str
    function: KeyedProcessFunction


_kept: dict[tuple[str, str], _Kept] = {}


def take(plan: SubtaskPlan) -> KeyedProcessFunction:
    """The instance to run: the plan's own, or of a long-lived function the worker's, opened."""
    if not plan.function.long_lived:
        return plan.function
    kept = _kept.pop((plan.lineage, plan.uid), None)
    if kept is not None and kept.run == plan.run:
        return kept.function
    if kept is not None:
        # Another run has other code, maybe.
        close(kept.function, plan.uid)
    # Its author knows that it is none with state.
    context: Any = WorkerContext(plan.uid, plan.parallelism)
    plan.function.open(context)
    return plan.function


def give_back(plan: SubtaskPlan, function: KeyedProcessFunction) -> None:
    """Keep a long-lived function that has done an epoch; any other is closed."""
    if function.long_lived:
        _kept[plan.lineage, plan.uid] = _Kept(plan.run, function)
    else:
        function.close()


def forget(lineage: str) -> None:
    """Close what is kept of a lineage whose workers end, as they would in a crash."""
    for place in [place for place in _kept if place[0] == lineage]:
        close(_kept.pop(place).function, place[1])


def close(function: KeyedProcessFunction, uid: str) -> None:
    """Close a function that goes no further; never raises."""
    try:
        function.close()
    except Exception:  # noqa: BLE001 - user code
        _log.exception("closing a function failed: operator=%s", uid)
