"""Schema evolution: reading values that were written with another type than the one declared now.

Decides which changes of a state's type keep its values (`compare`), what becomes of a value that
an earlier type wrote (`migration`), and how a value tells which type wrote it (`reader_of`). Pure;
called when a state is registered, for every value of a state whose type changed, and by everything
that reads stored values: never for a state whose type is still its first.
"""

from moorage_state.evolution.compatibility import compare as compare
from moorage_state.evolution.compatibility import migration as migration
from moorage_state.evolution.generations import declared_over as declared_over
from moorage_state.evolution.generations import later_of as later_of
from moorage_state.evolution.generations import mark_of as mark_of
from moorage_state.evolution.generations import raw_of_latest as raw_of_latest
from moorage_state.evolution.generations import reader_of as reader_of
from moorage_state.evolution.generations import writer_of as writer_of
