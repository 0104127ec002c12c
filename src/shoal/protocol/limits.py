"""Limits that workers keep to and servers enforce."""

from __future__ import annotations

WINDOW = 256  # requests that one worker may have in flight at a server
KEYS_MAX = 1 << 22  # keys of a sparse table in one part of a request
