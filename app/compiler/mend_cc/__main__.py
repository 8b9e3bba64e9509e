"""`python3 -m mend_cc`."""

import sys

from .command import main

sys.exit(main())
