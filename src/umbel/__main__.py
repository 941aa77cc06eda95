"""``python -m umbel`` is ``umbel``."""

import sys

from umbel.cli import main

sys.exit(main())
