"""From the request in the environment to the answer in the termination message."""

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from moorage_state.errors import UserError
from moorage_state.snapshots.errands import (
    Answer,
    decode_request,
    encode_answer,
    run_errand,
)
from moorage_state.stores import open_store

__all__ = ["ANSWER_FILE_ENV", "REQUEST_ENV", "main"]

REQUEST_ENV = "MOORAGE_ERRAND"
ANSWER_FILE_ENV = "MOORAGE_TERMINATION_LOG"
_ANSWER_FILE = "/dev/termination-log"

_log = logging.getLogger(__name__)


def main(environ: Mapping[str, str] = os.environ) -> int:
    """Do the errand that the environment asks for; return the exit status.

    0 is an errand that was done, 1 one that failed, with an answer that says why; 2 is no errand.
    """
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    try:
        request = decode_request(environ.get(REQUEST_ENV, ""))
    except UserError as error:
        refused = Answer(id="", state="Failed", code=error.code, message=str(error))
        _write(environ, refused)
        return 2
    answer = run_errand(request, open_store)
    _write(environ, answer)
    return 0 if answer.state == "Completed" else 1


def _write(environ: Mapping[str, str], answer: Answer) -> None:
    """The kubelet takes the file as it is when the process has ended."""
    line = encode_answer(answer)
    _log.info("errand: %s", line)
    Path(environ.get(ANSWER_FILE_ENV, _ANSWER_FILE)).write_text(f"{line}\n")
