"""`python -m whippletree.cli`, for child processes that must use this interpreter."""

import sys

from whippletree.cli.main import main

sys.exit(main())
