"""The scripts of the repository under test."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

__all__ = ["ROOT", "script"]

ROOT = Path(__file__).parents[3]


def script(name: str) -> ModuleType:
    """A module of scripts/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look for it there
    spec.loader.exec_module(module)
    return module
