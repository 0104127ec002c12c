"""What codecs made of each layer's pushes, from the event log of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import mean
from typing import Any

Layer = tuple[str, str, str]  # table, layer, codec


def codec_figures(events: Iterable[Mapping[str, Any]]) -> dict[Layer, dict[str, float]]:
    """Return the mean figures of the measured pushes of all workers.

    Returns:
        By layer: "raw_bytes" and "encoded_bytes" of a push, its "error" (relative), and how many
        "pushes" were measured.
    """
    pushes: dict[Layer, list[Mapping[str, Any]]] = {}
    for event in events:
        if event["kind"] == "codec":
            pushes.setdefault((event["table"], event["layer"], event["codec"]), []).append(event)
    return {
        layer: {
            **{name: mean(each[name] for each in some) for name in FIGURES},
            "pushes": len(some),
        }
        for layer, some in pushes.items()
    }


FIGURES = ("raw_bytes", "encoded_bytes", "error")
