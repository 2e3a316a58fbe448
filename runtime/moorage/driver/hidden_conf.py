"""Settings with secrets on their way to Spark's JVM, which shows its arguments to everybody.

Decides which settings travel in a file in place of the command line. Called when a session starts.
"""

import os
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from moorage.redaction import has_credentials, is_secret

__all__ = ["hidden", "out_of_sight", "properties"]

_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
_SHELL = "pyspark-shell"
_ESCAPED = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}


def hidden(conf: Mapping[str, str]) -> dict[str, str]:
    """The settings that must not stand on a command line."""
    return {key: value for key, value in conf.items() if is_secret(key) or has_credentials(value)}


@contextmanager
def out_of_sight(conf: Mapping[str, str]) -> Iterator[None]:
    """A JVM that is started within gets these settings from a file that nobody else can read."""
    if not conf:
        yield
        return
    before = os.environ.get(_ARGUMENTS)
    # Readable for this user alone, and gone as soon as the JVM has it.
    with tempfile.TemporaryDirectory(prefix="moorage-") as folder:
        file = Path(folder) / "spark.properties"
        file.touch(mode=0o600)
        file.write_text(properties(conf), encoding="ascii")
        arguments = f"--load-spark-defaults --properties-file {shlex.quote(str(file))}"
        os.environ[_ARGUMENTS] = f"{arguments} {before or _SHELL}"
        try:
            yield
        finally:
            if before is None:
                os.environ.pop(_ARGUMENTS, None)
            else:
                os.environ[_ARGUMENTS] = before


def properties(conf: Mapping[str, str]) -> str:
    """The settings as a file of Java properties, in ASCII."""
    return "".join(f"{_escaped(key, key=True)}={_escaped(value)}\n" for key, value in conf.items())


def _escaped(text: str, *, key: bool = False) -> str:
    return "".join(_character(one, key=key) for one in text)


def _character(one: str, *, key: bool) -> str:
    if one in _ESCAPED:
        return _ESCAPED[one]
    if one == " " or (key and one in "=:#!"):
        return f"\\{one}"
    if " " < one <= "~":
        return one
    units = one.encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
