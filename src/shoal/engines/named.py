"""The engines of `--engine`, by name. Packages add theirs as entry points of `shoal.engines`."""

from __future__ import annotations

from collections.abc import Callable

from shoal.engines.base import Engine, Room
from shoal.engines.local import LocalEngine
from shoal.engines.ray import RayEngine
from shoal.registry import Registry

engines: Registry[Callable[[Room], Engine]] = Registry("engine")
engines.add("local", lambda room: LocalEngine())
engines.add("ray", RayEngine)
