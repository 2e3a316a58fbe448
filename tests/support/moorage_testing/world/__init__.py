"""A whole world for the operator: a cluster without nodes, drivers without Spark, a clock.

Scenarios are written against `World`. The API server behind it is either the one in memory or a
real one; pods are walked through their life by a kubelet that is a few lines long, and a driver is
an object that keeps a real lineage log and counts to a number, so that every claim about state can
be checked: what was restored, what was lost, whether two drivers ever wrote.
"""

from moorage_testing.world.buckets import Buckets
from moorage_testing.world.clock import FakeClock
from moorage_testing.world.drivers import Drivers, FakeDriver
from moorage_testing.world.kubelet import Kubelet
from moorage_testing.world.scene import World
from moorage_testing.world.sites import MemorySite, RealSite

__all__ = [
    "Buckets",
    "Drivers",
    "FakeClock",
    "FakeDriver",
    "Kubelet",
    "MemorySite",
    "RealSite",
    "World",
]
