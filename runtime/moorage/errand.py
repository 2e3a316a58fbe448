"""A store task's process: `python -m moorage.errand` does one thing in a store and says what came.

The operator starts it as a pod under a job's service account. The request is in the environment,
the answer becomes the pod's termination message. It must not know Spark, nor any job's program.
"""

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from moorage.redaction import RedactingFormatter, Redactor
from moorage_state.core_dumps import no_core_dumps
from moorage_state.errors import UserError
from moorage_state.snapshots.store_tasks import (
    Answer,
    decode_request,
    encode_answer,
    run_store_task,
)
from moorage_state.stores import open_store

# This module and the variable are called what a store task was called once: the operator and the
# job's image may be of two releases, and each must find the name that the other knows.
REQUEST_ENV = "MOORAGE_ERRAND"
ANSWER_FILE_ENV = "MOORAGE_TERMINATION_LOG"
_ANSWER_FILE = "/dev/termination-log"

_log = logging.getLogger(__name__)


def main(environ: Mapping[str, str] = os.environ) -> int:
    """Do the store task that the environment asks for; return the exit status.

    0: it was done; 1: it failed, with an answer that says why; 2: no store task is asked for.
    """
    no_core_dumps()
    log_to_stderr(environ)
    try:
        request = decode_request(environ.get(REQUEST_ENV, ""))
    except UserError as error:
        refused = Answer(id="", state="Failed", code=error.code, message=str(error))
        write_answer(environ, refused)
        return 2
    answer = run_store_task(request, open_store)
    write_answer(environ, answer)
    return 0 if answer.state == "Completed" else 1


def log_to_stderr(environ: Mapping[str, str]) -> None:
    """Lines of the log, without the values of secret variables."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(RedactingFormatter(Redactor(environ)))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def write_answer(environ: Mapping[str, str], answer: Answer) -> None:
    """Say what came of it: the kubelet takes the file as it is when the process has ended.

    It becomes a message in the job's status, so it has no secret that a job's program let slip.
    """
    clean = Redactor(environ)
    result = {k: clean(v) if isinstance(v, str) else v for k, v in answer.result.items()}
    answer = msgspec.structs.replace(answer, message=clean(answer.message), result=result)
    line = encode_answer(answer)
    _log.info("store task: %s", line)
    Path(environ.get(ANSWER_FILE_ENV, _ANSWER_FILE)).write_text(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main())
