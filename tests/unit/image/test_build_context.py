"""What the images are built from is there, and is sent to the builder."""

import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
IGNORE = ROOT / ".dockerignore"

# Each file with what `docker build` is given as its context.
BUILDS = {
    "Dockerfile": ".",
    "tests/e2e/Containerfile": ".",
    "examples/kubernetes/Dockerfile": "examples/ticker",
}


def copied(file):
    """What a Dockerfile copies out of its context."""
    text = (ROOT / file).read_text().replace("\\\n", " ")
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["COPY"] and not words[1].startswith("--from"):
            yield from words[1:-1]


def is_sent(path):
    """Whether the last line of .dockerignore that matches lets it through."""
    sent = True
    for line in IGNORE.read_text().split():
        pattern = line.removeprefix("!").removeprefix("**/")
        parents = [path, *(str(parent) for parent in Path(path).parents)]
        if any(fnmatch.fnmatch(one, pattern) for one in parents):
            sent = line.startswith("!")
    return sent


@pytest.mark.parametrize("file", BUILDS)
def test_what_an_image_copies_is_there_and_reaches_the_builder(file):
    context = ROOT / BUILDS[file]
    sources = list(copied(file))
    assert sources
    assert [source for source in sources if not (context / source).exists()] == []
    if context == ROOT:
        assert [source for source in sources if not is_sent(source)] == []


def test_nothing_that_is_large_or_private_reaches_the_builder():
    assert [name for name in (".git", ".venv", "tests", "artifacts") if is_sent(name)] == []
