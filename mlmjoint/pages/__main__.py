"""`python -m mlmjoint.pages`."""

import sys

from . import main

sys.exit(main())
