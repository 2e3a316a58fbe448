"""Measure what coordination costs against size: `python -m benchmarks.scale [TOPIC ...]`.

The coordinating code is the real one; servers, stores and the API server are stand-ins in memory
with injected latencies. Each topic prints its table and writes it, its points and a picture into
`build/bench/scale/`. The exit status is 1 where an exponent is above what is asked.
"""

import argparse
import sys
from importlib import import_module
from pathlib import Path

from benchmarks.scale.curve import Curve, table, write

TOPICS: dict[str, str] = {
    "epochs": "benchmarks.scale.epochs",
    "history": "benchmarks.scale.history",
    "sinks": "benchmarks.scale.sinks",
    "manifests": "benchmarks.scale.manifests",
    "sources": "benchmarks.scale.sources",
    "rescale": "benchmarks.scale.rescale",
    "timers": "benchmarks.scale.timers",
    "unions": "benchmarks.scale.unions",
    "operator": "benchmarks.scale.operator",
    "restart": "benchmarks.scale.restart",
    "day": "benchmarks.scale.day",
}
"""By name, the module whose `measure(quick)` returns the curves of a topic."""


def main(arguments: list[str] | None = None) -> int:
    """Measure the topics that are named, or all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale")
    parser.add_argument("topics", nargs="*", metavar="TOPIC", help=f"of {[*TOPICS]}; default all")
    parser.add_argument("--quick", action="store_true", help="small sizes: to see that it works")
    parser.add_argument("--out", type=Path, default=Path("build/bench/scale"))
    options = parser.parse_args(arguments)
    if unknown := set(options.topics) - set(TOPICS):
        parser.error(f"unknown topics: {sorted(unknown)}; there are {[*TOPICS]}")
    kept = True
    for topic in options.topics or TOPICS:
        curves: list[Curve] = import_module(TOPICS[topic]).measure(quick=options.quick)
        print(table(curves), flush=True)
        write(curves, options.out)
        kept = kept and all(curve.kept for curve in curves)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
