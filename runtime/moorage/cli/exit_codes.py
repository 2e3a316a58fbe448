"""What the exit status of `moorage` means, and which error gives which.

It goes by an error's stable `code`, so it needs none of the packages that define the errors.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit status of `moorage`; docs/cli.md says what each means."""

    OK = 0
    INTERNAL = 1
    BAD_INPUT = 2
    JOB_FAILED = 3
    STORE = 4
    CORRUPT = 5
    FENCED = 6
    LOCAL_DISK = 7
    INTERRUPTED = 130


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
