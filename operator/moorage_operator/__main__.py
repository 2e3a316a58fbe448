"""`python -m moorage_operator`: the operator's process, as its image starts it."""

import asyncio
import json
import logging
import os
import resource
import sys
from datetime import UTC, datetime
from typing import Literal

from kubernetes.aio.config import ConfigException

from moorage_operator.app import serve
from moorage_operator.settings import SettingsError, read_settings

_TEXT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
_LONGEST = 8192
# Each request of these is a line at info.
_TALKATIVE = ("aiohttp.access", "botocore", "boto3", "urllib3", "kopf")
_DEEPEST = 20_000
"""Objects may be nested 10,000 deep, as an API server takes them. With Python's own limit one job
of such a kind would end the process, which looks after those of everybody."""
_USER_ERROR = 2
_FAILED = 1


class JsonLines(logging.Formatter):
    """time, level, logger, message; of an exception also its trace."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage()[:_LONGEST],
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)[-_LONGEST:]
        return json.dumps(line, ensure_ascii=False)


def set_up_logs(form: Literal["json", "text"], level: str) -> None:
    """Send everything that is logged to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else logging.Formatter(_TEXT))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.root.level))


def main() -> int:
    """Run the operator; returns the exit status: 0 after SIGTERM, 2 for wrong settings, else 1."""
    try:
        settings = read_settings(sys.argv[1:], os.environ)
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        return _USER_ERROR
    set_up_logs(settings.log_format, settings.log_level)
    sys.setrecursionlimit(_DEEPEST)
    # What crashes holds the account's token and those of all jobs.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
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
