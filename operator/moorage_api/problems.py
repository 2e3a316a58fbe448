"""What is wrong with a manifest, in a form that people and programs can read.

Made by the loader and the validators of this package, printed by the command line, and one day
shown by `kubectl describe`. Knows nothing of files, pydantic or terminals.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar


def field_name(path: Sequence[str | int]) -> str:
    """Return a path as a person writes it: `spec.application.env[0].name`."""
    shown = ""
    for part in path:
        if isinstance(part, int):
            shown += f"[{part}]"
        elif "." in part or "/" in part:
            shown += f"['{part}']"
        else:
            shown += f".{part}" if shown else part
    return shown


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to correct."""

    # The path in the manifest, such as `spec.scaling.parallelism`; `""` is the whole file
    field: str
    reason: str  # what is wrong with it
    fix: str  # what to write instead
    # The line in the file, counted from 1; None where there is no file or no such line
    line: int | None = None

    @property
    def what(self) -> str:
        """Where it is and what is wrong, without what to write instead."""
        at = f" (line {self.line})" if self.line is not None else ""
        return f"{self.field or 'manifest'}{at}: {self.reason}"

    def __str__(self) -> str:
        return f"{self.what}; {self.fix}"


class ManifestError(Exception):
    """A manifest cannot be used: a person must change it.

    Attributes:
        source: the file (or other place) that the manifest came from.
        problems: everything that is wrong with it, in the order of the file.
    """

    code: ClassVar[str] = "manifest_error"

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        super().__init__(source, tuple(problems))
        self.source = source
        self.problems = tuple(problems)

    def __str__(self) -> str:
        count = len(self.problems)
        head = f"{self.source} has {count} problem{'' if count == 1 else 's'}:"
        return "\n".join([head, *(f"  {problem}" for problem in self.problems)])
