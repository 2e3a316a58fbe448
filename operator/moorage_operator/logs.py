"""Log lines: one JSON object each, or text for people at a terminal."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Literal

__all__ = ["JsonLines", "set_up_logs"]

_TEXT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
_LONGEST = 8192
# Each request of these is a line at info.
_TALKATIVE = ("aiohttp.access", "botocore", "boto3", "urllib3", "kopf")


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
