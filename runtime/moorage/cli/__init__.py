"""The `moorage` command: runs and checks jobs from a terminal, without Kubernetes.

It decides what is printed and which exit status an error gets. People, scripts and the demo call
it. It must not know how an epoch works: the driver does the work and reports its progress.
"""

import sys

from moorage_state.import_path import standard_library_first


def main() -> None:
    """Run the command line and leave the process with its exit status."""
    standard_library_first()
    try:
        from moorage.cli.app import run_app
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("moorage"):
            raise
        sys.exit(f"moorage: {error.name} is not installed; run: pip install 'moorage[run]'")
    sys.exit(run_app())
