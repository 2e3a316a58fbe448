"""Which names are those of secrets, and how their values are kept out of texts.

Asked by the command line and by drivers for everything that they print or answer (their log, their
endpoint, their end), and by whoever starts Spark. Pure.
"""

import base64
import logging
import re
from collections.abc import Mapping

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


class Redactor:
    """Takes the values of secret variables, tokens, and credentials in URLs out of texts.

    Tokens also in base64, as Spark's processes have theirs.
    """

    def __init__(self, environ: Mapping[str, str], *tokens: str) -> None:
        self._secrets = dict(environ)
        for number, token in enumerate(tokens):
            self._secrets[f"TOKEN_{number}"] = token
            self._secrets[f"TOKEN_{number}_BASE64"] = base64.b64encode(token.encode()).decode()

    def __call__(self, text: str) -> str:
        """The text without secrets."""
        return redact(text, self._secrets)


class RedactingFormatter(logging.Formatter):
    """Lines of a log, tracebacks included, without secrets."""

    def __init__(self, redactor: Redactor) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._redactor = redactor

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        return self._redactor(super().format(record))
