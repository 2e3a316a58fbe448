"""What a job file and its folder tell of a job without running it.

Decides what cannot be a job file, and what cannot lie beside it. Called by the checks of a manifest
and by the driver before Spark is started, which takes long.
"""

import ast
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

# What processes of a job import, all of them folders: a single file of such a name is another's.
_PACKAGES = frozenset({
    *("boto3", "botocore", "msgspec", "numpy", "pandas", "py4j", "pyarrow", "pyspark", "rocksdict"),
    *("click", "pydantic", "rich", "typer", "yaml"),
    *("moorage", "moorage_api", "moorage_state"),
})  # fmt: skip

NO_BUILD = "add `def build(env):` that reads streams from env and says what to do with them"
ODD_BUILD = "define `def build(env):`, which is called with the stream environment alone"


@dataclass(frozen=True, slots=True)
class Fault:
    """What keeps a file from being built.

    Attributes:
        cause: why it is not Python; None if it is, and has no `build`.
        line: where, as far as that is known.
        odd_build: there is a `build`, which cannot be called with env alone.
    """

    cause: SyntaxError | ValueError | None = None
    line: int | None = None
    odd_build: bool = False


def fault_of(path: Path) -> Fault | None:
    """What is wrong with the file; None also where names come in ways that cannot be read off it.

    Raises OSError: it cannot be read.
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
    if "build" not in names and not stars:
        return Fault()
    odd = _odd_build(tree)
    return None if odd is None else Fault(line=odd, odd_build=True)


def _odd_build(tree: ast.Module) -> int | None:
    """The line of the file's own `build`, where that is all there is and env does not fit in."""
    named = [n for n in ast.walk(tree) if getattr(n, "name", None) == "build" or _stores_build(n)]
    match named:
        case [ast.FunctionDef(args=arguments, decorator_list=[]) as function] if (
            function in tree.body
        ):
            places = len(arguments.posonlyargs) + len(arguments.args)
            required = places - len(arguments.defaults)
            named_only = any(default is None for default in arguments.kw_defaults)
            fits = required <= 1 <= places or (required <= 1 and arguments.vararg is not None)
            return None if fits and not named_only else function.lineno
    return None


def _stores_build(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "build" and isinstance(node.ctx, ast.Store)


def hiding_files(folders: Iterable[Path]) -> list[Path]:
    """Files of a job that its processes would import in place of a package that they need."""
    return _named(folders, _PACKAGES)


def unread_files(folders: Iterable[Path], main_file: Path) -> list[Path]:
    """Files named like a module of the standard library, which is found first."""
    return [path for path in _named(folders, sys.stdlib_module_names) if path != main_file]


def _named(folders: Iterable[Path], names: frozenset[str]) -> list[Path]:
    found = (path for folder in folders if folder.is_dir() for path in folder.glob("*.py"))
    return sorted(path for path in found if path.stem in names)
