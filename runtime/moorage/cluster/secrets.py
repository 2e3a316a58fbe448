"""Keeps secrets out of everything a driver says: its log, its endpoint, its end."""

import base64
import logging
from collections.abc import Mapping

from moorage.redaction import redact

__all__ = ["RedactingFormatter", "Redactor"]


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
