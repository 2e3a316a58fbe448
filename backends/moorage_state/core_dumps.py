"""Processes that hold tokens and keys leave no image of their memory behind when they crash.

A node keeps core dumps for whoever looks after nodes, and longer than any secret lives. Called
first of all by the programs of drivers, state servers and store tasks; what they start inherits it.
"""

import resource

__all__ = ["no_core_dumps"]


def no_core_dumps() -> None:
    """None of this process, nor of those that it starts."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
