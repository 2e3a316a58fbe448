"""Scripts of an example, which lie beside each other and are no package."""

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType


@contextmanager
def scripts_of(folder: Path) -> Iterator[Callable[[str], ModuleType]]:
    """Import them as one of them would; others of their names are hidden within the block."""
    names = [path.stem for path in folder.glob("*.py")]
    hidden = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield importlib.import_module
    finally:
        sys.path.remove(str(folder))
        for name in names:
            sys.modules.pop(name, None)
        sys.modules.update(hidden)
