"""What the jobs of the benchmark have in common: their input, their output, their name for both."""

from typing import Any

from moorage import FileSink

__all__ = ["STATE", "describe"]

STATE = "count long, sum long"


def describe(env: Any, function: Any) -> None:
    """A job that runs `function` over the rows of one directory and publishes into another."""
    source, target = env.args
    rows = env.read_stream(
        "rows", "parquet", schema="key long, value long", path=source, maxFilesPerTrigger=1
    )
    totals = rows.key_by("key").process(function, uid="totals", output=f"key long, {STATE}")
    totals.sink_to(FileSink(target), uid="out")
