"""Tests of a job's functions without Spark and without Java; see docs/testing.md."""

from moorage.testing.in_process import Snapshot
from moorage.testing.keyed_harness import KeyedHarness, SecondStream
from moorage.testing.replay import NotDeterministic
from moorage.testing.whole_job import run_job

__all__ = ["KeyedHarness", "NotDeterministic", "SecondStream", "Snapshot", "run_job"]
