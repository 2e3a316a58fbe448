"""CustomResourceDefinitions, made from the models.

`scripts/crds.py` writes them to `crds/`; nothing at run time depends on this package.
"""

from moorage_api.crd.definition import JOB_CRD_NAME, SNAPSHOT_CRD_NAME, job_crd, snapshot_crd

__all__ = ["JOB_CRD_NAME", "SNAPSHOT_CRD_NAME", "job_crd", "snapshot_crd"]
