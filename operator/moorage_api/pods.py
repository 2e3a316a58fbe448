"""The fixed parts of a job's pods: names, paths, ports and variables that nobody else may take.

The builders of the control plane make pods from these, the judges of this package refuse manifests
that clash with them, and the runtime finds its files by them. Constants only.
"""

__all__ = [
    "BLOCK_MANAGER_PORT",
    "CONFIG_VOLUME",
    "CREDENTIAL_ENV",
    "DRIVER_CONTAINER",
    "DRIVER_PORT",
    "EXECUTOR_CONTAINER",
    "LOCAL_DIR",
    "LOCAL_VOLUME",
    "OWNED_ENV",
    "OWNED_ENV_PREFIXES",
    "OWNED_PORTS",
    "OWNED_VOLUMES",
    "SCRAPE_DIR",
    "SCRAPE_VOLUME",
    "SIDECAR_CONTAINER",
    "SIDECAR_HEALTH_PORT",
    "SIDECAR_PORT",
    "SPARK_UID",
    "TLS_DIR",
    "TLS_VOLUME",
    "TOKEN_DIR",
    "TOKEN_VOLUME",
]

DRIVER_CONTAINER = "driver"
EXECUTOR_CONTAINER = "executor"
SIDECAR_CONTAINER = "state-server"

CONFIG_VOLUME = "moorage-config"
TOKEN_VOLUME = "moorage-token"  # noqa: S105  a volume's name
SCRAPE_VOLUME = "moorage-scrape"
TLS_VOLUME = "moorage-tls"
LOCAL_VOLUME = "moorage-local"
OWNED_VOLUMES = (CONFIG_VOLUME, TOKEN_VOLUME, SCRAPE_VOLUME, TLS_VOLUME, LOCAL_VOLUME)

TOKEN_DIR = "/etc/moorage/token"  # noqa: S105  a directory
SCRAPE_DIR = "/etc/moorage/scrape"
TLS_DIR = "/etc/moorage/tls"
LOCAL_DIR = "/var/lib/moorage"
"""Where the working databases and the sockets of state servers lie."""

DRIVER_PORT = 7078
BLOCK_MANAGER_PORT = 7079
SIDECAR_HEALTH_PORT = 7789
SIDECAR_PORT = 7790
"""The first state server's; the others follow."""
OWNED_PORTS = (DRIVER_PORT, BLOCK_MANAGER_PORT, 7780, SIDECAR_HEALTH_PORT, SIDECAR_PORT)

SPARK_UID = 185
"""User and group of all containers: those of Spark's own images."""

CREDENTIAL_ENV = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
"""Taken from credentialsSecretRef; the last one only if the Secret has it."""

OWNED_ENV = (
    "PYSPARK_DRIVER_PYTHON",
    "PYSPARK_PYTHON",
    "SPARK_APPLICATION_ID",
    "SPARK_CONF_DIR",
    "SPARK_DRIVER_URL",
    "SPARK_LOCAL_DIRS",
    "SPARK_RESOURCE_PROFILE_ID",
    "SPARK_USER",
)
"""Variables that Spark or the runtime sets itself."""
OWNED_ENV_PREFIXES = ("MOORAGE_", "SPARK_EXECUTOR_", "SPARK_JAVA_OPT_", "_SPARK_")
