"""`python -m mlmjoint.cli` is the command `mlmjoint`."""

import sys

from .main import main

sys.exit(main())
