"""`python -m whippletree.control SPEC.json`: a controller."""

import sys

from whippletree.control.process import main

sys.exit(main(sys.argv[1:]))
