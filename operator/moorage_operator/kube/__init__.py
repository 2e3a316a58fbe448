"""The API server: which kinds there are, what its errors mean, and the client that speaks to it.

Decides how the `Cluster` port becomes requests and how answers become objects or `ClusterError`s.
Called by the loop through the port, and by the process that wires everything up. It knows nothing
of jobs.
"""

from moorage_operator.kube.errors import cluster_error
from moorage_operator.kube.resources import MANAGER, RESOURCES, Resource, resource_of

__all__ = ["MANAGER", "RESOURCES", "Resource", "cluster_error", "resource_of"]
