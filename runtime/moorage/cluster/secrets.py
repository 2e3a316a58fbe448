"""Keeps secrets out of everything a driver says: its log, its endpoint, its end."""

import base64
import logging
from collections.abc import Mapping

from moorage.redaction import redact

__all__ = ["RedactingFormatter", "Redactor"]


class Redactor:
    """Takes the values of secret variables, the token, and credentials in URLs out of texts.

    The token also in the form that Spark has it in.
    """

    def __init__(self, environ: Mapping[str, str], token: str = "") -> None:
        # Spark's processes have it as base64.
        spark = base64.b64encode(token.encode()).decode()
        self._secrets = {**environ, "MOORAGE_ENDPOINT_TOKEN": token, "SPARK_AUTH_SECRET": spark}

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
