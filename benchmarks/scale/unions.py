"""What a union list costs against how many subtasks read it, each of them all that all have.

Servers are real ones, in this process, with four subtasks each; subtasks are threads that only
read. Once all have written, and once nobody has.
"""

import tempfile
import time
from pathlib import Path

from moorage_testing.union_servers import UnionServers

from benchmarks.scale.curve import Curve

_ON_A_SERVER = 4


def measure(*, quick: bool) -> list[Curve]:
    """Curves of one epoch in which all subtasks read a union list."""
    sizes = (16, 32, 64) if quick else (16, 32, 64, 128, 256)
    found = [(size, *_epochs(size)) for size in sizes]

    def curve(name: str, unit: str, at: int, most: float | None) -> Curve:
        points = tuple((row[0], row[at]) for row in found)
        return Curve("unions", name, unit, "subtasks", points, most)

    return [
        curve("all have written", "messages", 1, 1.1),
        curve("nobody has written", "messages", 2, 1.1),
        # Each subtask decodes what all have: that is what was asked for.
        curve("all have written", "s of CPU, servers and subtasks", 3, None),
    ]


def _epochs(subtasks: int) -> tuple[int, int, float]:
    """Messages of an epoch with changes and of one without, and processor time of the first."""
    with (
        tempfile.TemporaryDirectory(prefix="moorage-bench-") as folder,
        UnionServers.running(Path(folder), subtasks, subtasks // _ON_A_SERVER) as world,
    ):
        world.write()
        world.messages.clear()
        began = time.process_time()
        lists = world.read("v1")
        seconds = time.process_time() - began
        if any(len(found) != subtasks for found in lists):
            raise RuntimeError(f"a subtask has not read what all have: subtasks={subtasks}")
        changed = world.messages.total()
        world.messages.clear()
        world.read("v1")
        return changed, world.messages.total(), seconds
