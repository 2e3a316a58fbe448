"""The typed models of Moorage's custom resources: the one truth about what a manifest may say.

It decides which fields exist, what they mean when left out, and which combinations are refused. The
operator, the driver and the command line call it; CRDs and reference pages are generated from it.
It must not know any of them, nor Spark, Kubernetes or a store: pydantic, YAML and the standard
library are all it imports.
"""

from moorage_api.cluster import cluster_problems
from moorage_api.compute import (
    Application,
    Autoscaler,
    DriverSpec,
    EnvVar,
    EpochSpec,
    ExecutorSpec,
    Resources,
    Scaling,
    SidecarSpec,
)
from moorage_api.job import API_VERSION, KIND, JobSpec, ObjectMeta, StatefulSparkJob
from moorage_api.lifecycle import Deletion, FailurePolicy, Observability, Upgrade
from moorage_api.manifest import Check, load_manifest, parse_manifest
from moorage_api.problems import ManifestError, Problem
from moorage_api.quantities import Duration, Quantity
from moorage_api.state import (
    S3,
    CheckpointSpec,
    LocalVolume,
    Restore,
    SavepointSpec,
    Schedule,
    StateSpec,
)
from moorage_api.unsupported import LocalRunReport, local_run_report

__all__ = [
    "API_VERSION",
    "KIND",
    "S3",
    "Application",
    "Autoscaler",
    "Check",
    "CheckpointSpec",
    "Deletion",
    "DriverSpec",
    "Duration",
    "EnvVar",
    "EpochSpec",
    "ExecutorSpec",
    "FailurePolicy",
    "JobSpec",
    "LocalRunReport",
    "LocalVolume",
    "ManifestError",
    "ObjectMeta",
    "Observability",
    "Problem",
    "Quantity",
    "Resources",
    "Restore",
    "SavepointSpec",
    "Scaling",
    "Schedule",
    "SidecarSpec",
    "StateSpec",
    "StatefulSparkJob",
    "Upgrade",
    "cluster_problems",
    "load_manifest",
    "local_run_report",
    "parse_manifest",
]
