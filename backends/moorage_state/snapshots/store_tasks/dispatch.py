"""One store task from its request to its answer; every failure becomes an answer too."""

import logging
from typing import Any

from moorage_state.errors import Bug, MoorageError, Retryable
from moorage_state.snapshots.entries import Owner
from moorage_state.snapshots.log import Clock, utc_now
from moorage_state.snapshots.store_tasks.lineage_tasks import delete_lineage, inspect, release
from moorage_state.snapshots.store_tasks.messages import Answer, StoreTaskRequest
from moorage_state.snapshots.store_tasks.snapshot_tasks import copy, delete, verify
from moorage_state.stores.addresses import Opener

_log = logging.getLogger(__name__)


def run_store_task(request: StoreTaskRequest, open_: Opener, *, clock: Clock = utc_now) -> Answer:
    """Do what is asked and return what came of it; it may be asked again at any time.

    `open_` opens the stores that the request names; `open_store`, or one with credentials.
    """
    try:
        result = _result(request, open_, clock)
    except MoorageError as error:
        retryable = isinstance(error, Retryable)
        return _failed(request, error.code, str(error), retryable=retryable)
    except Exception as error:  # noqa: BLE001 - a store task always answers
        _log.exception("store task failed: id=%s kind=%s", request.id, request.kind)
        name = type(error).__name__
        return _failed(request, Bug.code, f"unexpected error: {name}; see the log", retryable=True)
    return Answer(id=request.id, state="Completed", result=result)


def _result(request: StoreTaskRequest, open_: Opener, clock: Clock) -> dict[str, Any]:
    match request.kind:
        case "Inspect":
            return inspect(open_, request.checkpoint_dir, clock())
        case "Verify":
            return verify(open_, request.path)
        case "Copy":
            return copy(open_, request.source, request.path, request.attempt, request.owner)
        case "Delete":
            return delete(open_, request.path, request.digest, request.attempt)
        case "Release":
            return release(open_, request.checkpoint_dir, _owner(request), request.id)
        case "DeleteLineage":
            return delete_lineage(open_, request.checkpoint_dir, _owner(request), request.id)
        case "Preflight":
            raise Bug("a preflight runs the job's program, in a pod of its own")


def _owner(request: StoreTaskRequest) -> Owner:
    if request.owner is None:
        raise Bug(f"store task without an owner: id={request.id} kind={request.kind}")
    return request.owner


def _failed(request: StoreTaskRequest, code: str, message: str, *, retryable: bool) -> Answer:
    return Answer(id=request.id, state="Failed", code=code, message=message, retryable=retryable)
