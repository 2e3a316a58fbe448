"""`python -m moorage_operator`: the operator's process, as its image starts it."""

import asyncio
import logging
import os
import sys

from kubernetes.aio.config import ConfigException

from moorage_operator.app import serve
from moorage_operator.logs import set_up_logs
from moorage_operator.settings import SettingsError, read_settings

__all__ = ["main"]

_USER_ERROR = 2
_FAILED = 1


def main() -> int:
    """Run the operator; returns the exit status: 0 after SIGTERM, 2 for wrong settings, else 1."""
    try:
        settings = read_settings(sys.argv[1:], os.environ)
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        return _USER_ERROR
    set_up_logs(settings.log_format, settings.log_level)
    try:
        asyncio.run(serve(settings))
    except (SettingsError, ConfigException) as error:
        sys.stderr.write(f"{error}\n")
        return _USER_ERROR
    except Exception:
        logging.getLogger("moorage.operator").exception("the operator ends")
        return _FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
