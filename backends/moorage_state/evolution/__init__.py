"""Schema evolution: reading values that were written with another type than the one declared now.

Decides which changes of a state's type keep its values (`compare`), what becomes of a value that
an earlier type wrote (`migration`), and how a value tells which type wrote it (`reader_of`). Pure;
called when a state is registered, for every value of a state whose type changed, and by everything
that reads stored values: never for a state whose type is still its first.
"""

from moorage_state.evolution.compatibility import SchemaOutcome, compare, migration
from moorage_state.evolution.generations import (
    MAX_GENERATIONS,
    StateMigrationError,
    declared_over,
    later_of,
    mark_of,
    raw_of_latest,
    reader_of,
    writer_of,
)

__all__ = [
    "MAX_GENERATIONS",
    "SchemaOutcome",
    "StateMigrationError",
    "compare",
    "declared_over",
    "later_of",
    "mark_of",
    "migration",
    "raw_of_latest",
    "reader_of",
    "writer_of",
]
