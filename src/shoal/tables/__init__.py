"""The tables that servers store: their specifications, shards and access methods.

Nothing here uses a network or a clock. `spec` and `schedules` import without torch, because
schedulers and messages carry specifications; the others need it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.lazy import public

if TYPE_CHECKING:
    from shoal.keys import KeyRange
    from shoal.tables.access import AccessMethod
    from shoal.tables.consistency import Consistency, Cover, Quorum
    from shoal.tables.custom.calls import Pairs
    from shoal.tables.init import Init
    from shoal.tables.spec import Access, Span, TableSpec

__all__ = [
    "Access",
    "AccessMethod",
    "Consistency",
    "Cover",
    "Init",
    "KeyRange",
    "Pairs",
    "Quorum",
    "Span",
    "TableSpec",
]

__getattr__, __dir__ = public(
    __name__,
    {
        "shoal.keys": "KeyRange",
        "shoal.tables.access": "AccessMethod",
        "shoal.tables.consistency": "Consistency Cover Quorum",
        "shoal.tables.custom.calls": "Pairs",
        "shoal.tables.init": "Init",
        "shoal.tables.spec": "Access Span TableSpec",
    },
)
