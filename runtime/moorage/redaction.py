"""Which names are those of secrets, and how their values are kept out of texts.

Asked by the command line and by drivers for everything that they print or answer, and by whoever
starts Spark. Pure.
"""

import re
from collections.abc import Mapping

__all__ = ["SPARK_REDACTION", "has_credentials", "is_secret", "redact"]

_USERINFO = re.compile(r"(?<=://)[^/\s@]+@")
_WORDS = r"secret|token|passw(?:or)?d|access[._-]?key|api[._-]?key|private[._-]?key|credential"
_SECRET_NAME = re.compile(_WORDS, re.IGNORECASE)

SPARK_REDACTION = f"(?i){_WORDS}"
"""For `spark.redaction.regex`: what Spark itself hides in its log and its pages."""

# A shorter value is no secret worth the name, and would blank out ordinary words.
_MIN_LENGTH = 8


def is_secret(name: str) -> bool:
    """Whether the value of a variable or setting of this name must not be shown."""
    return _SECRET_NAME.search(name) is not None


def has_credentials(value: str) -> bool:
    """Whether a value, whatever its name, has a URL with a user's name or password in it."""
    return _USERINFO.search(value) is not None


def redact(text: str, environ: Mapping[str, str]) -> str:
    """Return `text` without credentials in URLs and without the values of secret variables."""
    text = _USERINFO.sub("***@", text)
    secrets = {
        value for name, value in environ.items() if is_secret(name) and len(value) >= _MIN_LENGTH
    }
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text
