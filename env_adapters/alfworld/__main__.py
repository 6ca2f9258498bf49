"""`python -m env_adapters.alfworld play`: play it in the terminal."""

import sys

from env_adapters.play import main

if __name__ == "__main__":
    sys.exit(main("alfworld"))
