"""For all tests: generated examples have no time limit, since machines are shared and busy; and Ctrl-C means what it does in a
terminal. A shell starts jobs in the background with it ignored, and they would pass that on to the commands under test.
"""

import signal

from hypothesis import HealthCheck, settings

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
signal.signal(signal.SIGINT, signal.default_int_handler)
