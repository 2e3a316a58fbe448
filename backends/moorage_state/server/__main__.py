"""`python -m moorage_state.server`: see `process`."""

import sys

from moorage_state.server.process import main

if __name__ == "__main__":
    sys.exit(main())
