"""``python -m gb10.relay``: arguments as JSON on standard input."""

import sys

from .node import main

sys.exit(main())
