"""How a savepoint of a job on this machine is asked for and waited for: with a bar, or with lines.

Called by the command. The job is asked by its socket: for the savepoint by one connection, which
answers when it is done, and meanwhile how it is by others.
"""

import threading
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from moorage.cli.output import waiting_bar
from moorage.texts import since_text
from moorage_state.errors import MoorageError, Retryable

if TYPE_CHECKING:
    from moorage.driver.requests import SavepointRequest
    from moorage.driver.run_status import RunStatus
    from moorage.driver.views import SavepointView

_LOOK_SECONDS = 0.5
_ANSWER_SECONDS = 5.0
_ORDER_SECONDS = 2.0
"""In which a job says at once what is wrong with an order."""


def taken(door: Path, request: "SavepointRequest", timeout: float) -> "SavepointView":
    """Ask for it, and show how it gets on until it is there.

    Raises:
        UserError: no job runs there, or it refuses.
        Retryable: it did not answer in `timeout` seconds, or ended first.
        MoorageError: why the savepoint failed.
    """
    from moorage.driver.control import ask_for_savepoint, ask_for_status

    box: list[SavepointView | BaseException] = []

    def ask() -> None:
        try:
            box.append(ask_for_savepoint(door, request, timeout))
        except BaseException as error:  # noqa: BLE001 - raised by who waits
            box.append(error)

    asking = threading.Thread(target=ask, name="savepoint", daemon=True)
    with waiting_bar() as show:
        before: RunStatus | None = None
        asking.start()
        while asking.is_alive():
            # It may have ended with the savepoint, which tells more, or be slow to say how it is.
            with suppress(MoorageError):
                now = ask_for_status(door, _ANSWER_SECONDS)
                before = before or now
                text, more = waits_for(before, now)
                show(f"savepoint {request.name}: {text}", *(now.saving or (0, None)), more)
            asking.join(_LOOK_SECONDS)
    if isinstance(box[0], BaseException):
        raise box[0]
    return box[0]


def ordered(door: Path, request: "SavepointRequest") -> "SavepointView | None":
    """Ask for it, and wait only so long that a refusal is heard; None: it is under way.

    Raises:
        UserError: no job runs there, or it refuses.
        Retryable: it ended first.
    """
    from moorage.driver.control import ask_for_savepoint

    try:
        return ask_for_savepoint(door, request, _ORDER_SECONDS)
    except Retryable as error:
        if isinstance(error.__cause__, TimeoutError):
            return None
        raise


def waits_for(before: "RunStatus", now: "RunStatus") -> tuple[str, str]:
    """What a savepoint waits for that was asked for when the job was as it was `before`.

    Returns:
        What it is, and what more can be said at this moment.
    """
    if now.saving is not None:
        return "state servers write it", ""
    if now.phase != "running":
        return f"waiting for the end of {now.phase}", ""
    if now.epoch == before.epoch and now.epoch_began is not None:
        age = since_text(now.epoch_began, datetime.now(UTC))
        return f"waiting for epoch {now.epoch + 1} to end", f", under way for {age}"
    return "taken between two epochs", ""
