"""`python -m hf_posswap`, as `torchrun -m` and `accelerate launch -m` start it."""

import sys

from hf_posswap.cli import main

if __name__ == "__main__":
    sys.exit(main())
