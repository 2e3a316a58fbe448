"""How the pods of a job are protected from others in their network."""

from typing import Annotated

from pydantic import Field

from moorage_api.model import Model
from moorage_api.names import OBJECT_NAME

__all__ = ["Security", "Tls"]


class Tls(Model):
    """Encryption between the pods of the job, the operator and Prometheus."""

    secret_name: Annotated[str, Field(pattern=OBJECT_NAME, max_length=253)]
    """A Secret of type kubernetes.io/tls with ca.crt beside tls.crt and tls.key. The certificate is
    for server and client, and has the DNS name <job>-driver.<namespace>.svc."""


class Security(Model):
    """Protection from others in the network of the pods."""

    tls: Tls | None = None
    """TLS for the driver's endpoint and for state servers; Spark then encrypts its local files,
    too. Without it, the endpoint and state servers are in the clear."""
