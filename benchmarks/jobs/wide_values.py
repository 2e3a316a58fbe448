"""A job whose state is as large as wanted: one value of ten kilobytes for each key.

`env.args` is the directory of its input, files of keys.
"""

import os
from typing import Any

from moorage import KeyedProcessFunction, StreamEnvironment, ValueStateDescriptor

VALUE_BYTES = 10_000


class Keep(KeyedProcessFunction):
    """Writes a new value for each row, which no compression makes smaller."""

    def open(self, ctx: Any) -> None:
        """See `KeyedProcessFunction`."""
        self.value = ctx.get_state(ValueStateDescriptor("value", "binary"))

    def process(self, row: Any, ctx: Any) -> Any:  # noqa: ARG002
        """See `KeyedProcessFunction`."""
        self.value.update(os.urandom(VALUE_BYTES))
        return ()


def build(env: StreamEnvironment) -> None:
    """One operator, whose output nobody reads."""
    (folder,) = env.args
    rows = env.read_stream("rows", "parquet", schema="key long", path=folder, maxFilesPerTrigger=1)
    rows.key_by("key").process(Keep(), uid="keep", output="key long")
