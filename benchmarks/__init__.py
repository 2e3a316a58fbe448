"""Moorage measured against Spark's own stateful operators: `python -m benchmarks`.

One job (count and sum per key) on the same files, in the same run, engine after engine, each in a
fresh process. The parent (`__main__`, `schedule`) never imports Spark; `engines` is what the
children run; the rest is pure.
"""

import sys
from pathlib import Path

# Stand-ins and servers of the tests: most benchmarks put one beside the real code.
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
