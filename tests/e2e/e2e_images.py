"""Images for the e2e tests: built with docker, podman or buildah, and brought to the nodes.

The Dockerfile's images are built by `scripts/image.sh`, as people build them; the others with the
same tool. What brings an archive of images to the nodes is kind's own command, or `--load`.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Images", "builder_at_hand"]

ROOT = Path(__file__).parents[2]
_TOOLS = ("docker", "podman", "buildah")


def builder_at_hand() -> str | None:
    """The tool that builds, as `scripts/image.sh` chooses it; None if there is none."""
    chosen = os.environ.get("BUILDER")
    return chosen or next((tool for tool in _TOOLS if shutil.which(tool)), None)


@dataclass(frozen=True, slots=True)
class Images:
    """Builds images and loads them.

    Attributes:
        builder: docker, podman or buildah.
        options: more options of its build command, such as build arguments.
        load: the command that takes the file of an archive and loads it on the nodes.
    """

    builder: str
    options: tuple[str, ...]
    load: tuple[str, ...]

    def build_ours(self, tag: str = "") -> None:
        """The operator's and the runtime's image; `tag` is the version by default."""
        # ARGS is also what `make` passes words for pytest in, and exports.
        environment = {**os.environ, "BUILDER": self.builder, "ARGS": " ".join(self.options)}
        # The base is whatever the tester's nodes and builder have.
        environment = {"OPERATOR_MAX_MB": "2000", "RUNTIME_MAX_MB": "4000"} | environment
        command = ["scripts/image.sh", *([tag] if tag else [])]
        subprocess.run(command, cwd=ROOT, check=True, env=environment)

    def build(self, name: str, containerfile: str, context: str, **arguments: str) -> None:
        """An image of another file."""
        verb = ["bud", "--layers"] if self.builder == "buildah" else ["build"]
        words = [word for pair in arguments.items() for word in ("--build-arg", "=".join(pair))]
        command = [self.builder, *verb, *self.options, "-f", containerfile, "-t", name, *words]
        subprocess.run([*command, context], cwd=ROOT, check=True)

    def tag(self, name: str, other: str) -> None:
        """Give an image another name."""
        subprocess.run([self.builder, "tag", name, other], check=True)

    def load_on_nodes(self, names: Iterable[str]) -> None:
        """Bring images to the nodes, one archive after the other."""
        for name in dict.fromkeys(names):
            with tempfile.TemporaryDirectory(prefix="moorage-e2e-") as folder:
                archive = Path(folder) / "image.tar"
                subprocess.run(self._save(name, archive), check=True)
                subprocess.run([*self.load, str(archive)], check=True)

    def _save(self, name: str, archive: Path) -> list[str]:
        if self.builder == "buildah":
            return ["buildah", "push", "-q", name, f"docker-archive:{archive}:{name}"]
        return [self.builder, "save", "-o", str(archive), name]
