"""The name that `moorage_state.state_backends` had: what jobs and programs import by it is there.

Decides nothing; looks names up when they are used, as the package does.
"""

from typing import Any

from moorage_state import state_backends

__all__ = state_backends.__all__


def __getattr__(name: str) -> Any:
    return getattr(state_backends, name)
