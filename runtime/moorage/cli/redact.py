"""Keeps secrets out of what is printed, whoever wrote the message."""

import re
from collections.abc import Mapping

__all__ = ["redact"]

_USERINFO = re.compile(r"(?<=://)[^/\s@]+@")
_SECRET_NAME = re.compile(r"SECRET|TOKEN|PASSWORD|PASSWD|ACCESS_KEY|CREDENTIAL", re.IGNORECASE)

# A shorter value is no secret worth the name, and would blank out ordinary words.
_MIN_LENGTH = 8


def redact(text: str, environ: Mapping[str, str]) -> str:
    """Return `text` without credentials in URLs and without the values of secret variables."""
    text = _USERINFO.sub("***@", text)
    secrets = {
        value
        for name, value in environ.items()
        if _SECRET_NAME.search(name) and len(value) >= _MIN_LENGTH
    }
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text
