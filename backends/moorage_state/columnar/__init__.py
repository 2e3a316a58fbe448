"""State values by column: many values of one state at once, as Arrow columns.

Decides nothing of how a value is stored; `codecs` does, and both give the same bytes. Called by
vectorized functions. Numbers, booleans, times, strings, bytes, structs of these and of such
structs, and lists of all that are read and written as whole NumPy columns; decimals, maps, and
structs with lists in them go value by value.
"""

from moorage_state.columnar.codec import ColumnCodec as ColumnCodec
