"""The keyed backends that benchmarks drive in this process."""

from pathlib import Path
from typing import Any

from moorage_state.keygroups import KeyGroupRange
from moorage_state.state_backends import Environment

__all__ = ["keyed_backend"]

_GROUPS = 128


def keyed_backend(factory: Any, directory: Path) -> Any:
    """Of one subtask that has all key groups; its keys are longs."""
    return factory.create_keyed_state_backend(
        Environment(local_dir=directory),
        "bench",
        "bench",
        ["bigint"],
        _GROUPS,
        KeyGroupRange(0, _GROUPS - 1),
    )
