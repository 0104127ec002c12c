"""Listens at an address for a minute: python listens.py ADDRESS"""

import sys
import time

from shoal.transport.base import Identity, transport_for

listener = transport_for(sys.argv[1]).listen(sys.argv[1], Identity("a", "server"))
print("listening", flush=True)
time.sleep(60)  # until it is killed; the bound is for a test that is killed itself
