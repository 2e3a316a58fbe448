"""`python -m moorage.errand`."""

import sys

from moorage.errand.main import main

if __name__ == "__main__":
    sys.exit(main())
