"""The store in a bucket: `s3://` addresses, for AWS, SeaweedFS, MinIO, Ceph and their like.

One module for each concern: `address` (what is where), `calls` (clients, requests, and what an
error means), `uploads`, `downloads`, and `store`, which puts them together. Everything that is
tried again is tried again by `moorage_state.stores.retries`; boto3's own retries are off.
"""

from moorage_state.stores.s3.address import S3Address as S3Address
from moorage_state.stores.s3.address import S3Credentials as S3Credentials
from moorage_state.stores.s3.bucket import S3Store as S3Store
