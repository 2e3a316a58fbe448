"""A preflight's process: `python -m moorage.preflight` tries what a start would, and says it.

The operator starts it as a pod of the new version, beside the driver that runs. Order and answer go
the way of a store task's: by the environment, and as the pod's termination message.
"""

import base64
import gzip
import json
import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from moorage.errand import REQUEST_ENV, log_to_stderr, write_answer
from moorage_state.core_dumps import no_core_dumps
from moorage_state.errors import MoorageError, Retryable, UserError
from moorage_state.import_path import standard_library_first
from moorage_state.snapshots import Owner
from moorage_state.snapshots.store_tasks import Answer, StoreTaskRequest, decode_request

if TYPE_CHECKING:
    from moorage.driver.types import Orders

JOB_ENV = "MOORAGE_PREFLIGHT_JOB"
"""The manifest, as JSON."""
PACKED_ENV = "MOORAGE_PREFLIGHT_JOB_GZ"
"""In its place where that is long: the same, by gzip and base64."""

_LONGEST = 500
"""Characters of what is said: a termination message has room for few."""

_log = logging.getLogger(__name__)


def main(environ: Mapping[str, str] = os.environ) -> int:
    """Try what is asked; return the exit status, 0 if all went well, 1 if not, 2 without a task."""
    no_core_dumps()
    log_to_stderr(environ)
    try:
        request = decode_request(environ.get(REQUEST_ENV, ""))
    except UserError as error:
        write_answer(environ, Answer(id="", state="Failed", code=error.code, message=str(error)))
        return 2
    answer = _answer(request, environ)
    write_answer(environ, answer)
    return 0 if answer.state == "Completed" else 1


def _answer(request: StoreTaskRequest, environ: Mapping[str, str]) -> Answer:
    # Spark is imported here: a pod whose order cannot be read says so at once.
    from moorage.driver.preflight import preflight
    from moorage_api import ManifestError, load_manifest

    if request.owner is None:
        return _failed(request, "bad_orders", "a preflight without an owner; use one moorage")
    folder = Path(environ.get("TMPDIR", "/tmp"))  # noqa: S108  the pod's own
    path = folder / "moorage-preflight.yaml"
    try:
        path.write_text(yaml.safe_dump(json.loads(_document(environ) or "null")))
        job = load_manifest(path)
        folder = Path(job.spec.application.main_path(folder)).parent
        found = preflight(job, folder, orders=_orders(request, request.owner))
    except (MoorageError, ManifestError) as error:
        code = getattr(error, "code", "bad_manifest")
        return _failed(request, code, str(error), retryable=isinstance(error, Retryable))
    except Exception as error:  # noqa: BLE001 - the pod always answers
        _log.exception("preflight failed: id=%s", request.id)
        return _failed(request, "bug", f"unexpected error: {type(error).__name__}: {error}")
    result = {"restore": found.restore or "", "epoch": found.epoch, "text": found.text[:_LONGEST]}
    return Answer(id=request.id, state="Completed", result=result)


def _document(environ: Mapping[str, str]) -> str:
    packed = environ.get(PACKED_ENV, "")
    if not packed:
        return environ.get(JOB_ENV, "")
    return gzip.decompress(base64.b64decode(packed)).decode()


def _orders(request: StoreTaskRequest, owner: Owner) -> "Orders":
    """What a start would be ordered to restore; the newest checkpoint if nothing is named.

    Then `source` is one that the lineage is known to have.
    """
    from moorage.driver.types import Orders

    orders = Orders(owner.cluster, owner.uid, "preflight", order_id=request.id)
    if request.source == "Empty":
        return replace(orders, mode="Empty")
    if not request.path:
        return replace(orders, path=request.source, order_id="")
    return replace(orders, mode="Path", path=request.path, digest=request.digest)


def _failed(
    request: StoreTaskRequest, code: str, message: str, *, retryable: bool = False
) -> Answer:
    return Answer(id=request.id, state="Failed", code=code, message=message, retryable=retryable)


if __name__ == "__main__":
    standard_library_first()
    sys.exit(main())
