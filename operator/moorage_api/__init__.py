"""The typed models of Moorage's custom resources: the one truth about what a manifest may say.

It decides which fields exist, what they mean when left out, and which combinations are refused. The
operator, the driver and the command line call it; CRDs and reference pages are generated from it.
It must not know any of them, nor Spark, Kubernetes or a store: pydantic, YAML and the standard
library are all it imports.
"""

from moorage_api.cluster import cluster_problems as cluster_problems
from moorage_api.compute import Application as Application
from moorage_api.compute import Scaling as Scaling
from moorage_api.job import API_VERSION as API_VERSION
from moorage_api.job import KIND as KIND
from moorage_api.job import JobSpec as JobSpec
from moorage_api.job import StatefulSparkJob as StatefulSparkJob
from moorage_api.lifecycle import Deletion as Deletion
from moorage_api.lifecycle import Upgrade as Upgrade
from moorage_api.manifest import Check as Check
from moorage_api.manifest import load_manifest as load_manifest
from moorage_api.problems import ManifestError as ManifestError
from moorage_api.problems import Problem as Problem
from moorage_api.quantities import Duration as Duration
from moorage_api.quantities import Quantity as Quantity
from moorage_api.state import S3 as S3
from moorage_api.state import LocalVolume as LocalVolume
from moorage_api.state import Restore as Restore
from moorage_api.unsupported import local_run_report as local_run_report
