"""What the exit status of `moorage` means, and which error gives which.

It goes by an error's stable `code`, so it needs none of the packages that define the errors.
"""

from enum import IntEnum

__all__ = ["MEANINGS", "ExitCode", "exit_code"]


class ExitCode(IntEnum):
    """The exit status of `moorage`."""

    OK = 0
    INTERNAL = 1
    BAD_INPUT = 2
    JOB_FAILED = 3
    STORE = 4
    CORRUPT = 5
    FENCED = 6
    LOCAL_DISK = 7
    INTERRUPTED = 130


MEANINGS: dict[ExitCode, str] = {
    ExitCode.OK: "done; a job finished, or was stopped (Ctrl-C, SIGTERM) with a last checkpoint",
    ExitCode.INTERNAL: "an internal error, or a failure that retries did not cure",
    ExitCode.BAD_INPUT: "the manifest or the arguments are wrong; nothing was started or changed",
    ExitCode.JOB_FAILED: (
        "code of the job raised an error, or its rows broke a rule "
        "(null keys, no time, wrong output)"
    ),
    ExitCode.STORE: "the store is missing, unreadable, held by another run or another job's",
    ExitCode.CORRUPT: "stored state is damaged (a run: and no older checkpoint may take its place)",
    ExitCode.FENCED: "another driver took the job over; this one stopped writing at once",
    ExitCode.LOCAL_DISK: "the local volume is full or cannot be written",
    ExitCode.INTERRUPTED: "interrupted (a run: a second time, so without a last checkpoint)",
}

_BY_CODE = {
    "corrupt_state": ExitCode.CORRUPT,
    "fenced": ExitCode.FENCED,
    "local_disk_error": ExitCode.LOCAL_DISK,
    "manifest_error": ExitCode.BAD_INPUT,
    "object_not_found": ExitCode.STORE,
    "store_denied": ExitCode.STORE,
    "store_refused": ExitCode.STORE,
    "store_unavailable": ExitCode.STORE,
    "user_error": ExitCode.BAD_INPUT,
    "user_function": ExitCode.JOB_FAILED,
}


def exit_code(error: BaseException) -> ExitCode:
    """Return the status for `error`: by its own code, else by the nearest base class's."""
    if isinstance(error, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    for kind in type(error).__mro__:
        code = kind.__dict__.get("code")
        if isinstance(code, str) and code in _BY_CODE:
            return _BY_CODE[code]
    return ExitCode.INTERNAL
