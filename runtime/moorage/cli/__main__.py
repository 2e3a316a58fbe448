"""`python -m moorage.cli` is `moorage`."""

from moorage.cli import main

main()
