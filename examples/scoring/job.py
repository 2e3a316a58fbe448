"""Scores payments by a model that is loaded once in each worker, and what is known of each user.

An instance of a function lives for an epoch, unless its class says `long_lived`: then it stays as
long as its worker, and the model with it. Arguments: the folder with payments as JSON lines, the
file of the model, and the folder for scores.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from moorage import (
    FileSink,
    KeyedProcessFunction,
    ProcessContext,
    StreamEnvironment,
    ValueStateDescriptor,
    WorkerContext,
)


class Model:
    """A logistic regression over the amount and the number of payments before; stands for yours."""

    def __init__(self, path: Path) -> None:
        weights = json.loads(path.read_text())
        self.bias, self.by_amount, self.by_count = weights["bias"], weights["amount"], weights["n"]

    def score(self, amount: float, count: int) -> float:
        """How odd a payment is, from 0 to 1."""
        return 1 / (1 + math.exp(-(self.bias + self.by_amount * amount + self.by_count * count)))


class Score(KeyedProcessFunction):
    """The model is in the instance, since all workers have the same; counts are in state."""

    long_lived = True

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def open(self, ctx: WorkerContext) -> None:
        """Once in a worker: what takes long."""
        del ctx
        self.model = Model(self.path)

    def open_epoch(self, ctx: Any) -> None:
        """In each epoch: state."""
        self.count = ctx.get_state(ValueStateDescriptor("count", "int"))

    def process(self, row: Any, ctx: ProcessContext) -> Iterator[Any]:
        """One payment."""
        count = self.count.value() or 0
        self.count.update(count + 1)
        yield ctx.key, row.amount, round(self.model.score(row.amount, count), 6)


def build(env: StreamEnvironment) -> None:
    """Describe the job."""
    source, model, target = env.args
    model = str(Path(__file__).parent / model)  # in the image as well, beside this file
    payments = env.read_stream("payments", "json", schema="user string, amount double", path=source)
    scores = payments.key_by("user").process(
        Score(model), uid="score", output="user string, amount double, score double"
    )
    scores.sink_to(FileSink(target), uid="out")
