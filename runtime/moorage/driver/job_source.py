"""What reading a job file tells of it, without running it.

Decides what cannot be a job file. Called by the checks of a manifest and by the driver before Spark
is started, which takes long.
"""

import ast
from dataclasses import dataclass
from pathlib import Path

__all__ = ["NO_BUILD", "Fault", "fault_of"]

NO_BUILD = "add `def build(env):` that reads streams from env and says what to do with them"


@dataclass(frozen=True, slots=True)
class Fault:
    """What keeps a file from being built.

    Attributes:
        cause: why it is not Python; None if it is, and has no `build`.
        line: where, as far as that is known.
    """

    cause: SyntaxError | ValueError | None = None
    line: int | None = None


def fault_of(path: Path) -> Fault | None:
    """What is wrong with the file; None also where names come in ways that cannot be read off it.

    Raises:
        OSError: it cannot be read.
    """
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except SyntaxError as error:
        return Fault(error, error.lineno)
    except ValueError as error:
        return Fault(error)
    names, stars = set(), False
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.Import(names=found) | ast.ImportFrom(names=found):
                names |= {alias.asname or alias.name for alias in found}
                stars = stars or any(alias.name == "*" for alias in found)
            case ast.Name(id="globals" | "exec" | "setattr"):
                stars = True
    return None if "build" in names or stars else Fault()
