"""`python -m moorage.cluster`."""

from moorage.cluster.main import main

if __name__ == "__main__":
    main()
