"""The figures of codecs, by layer."""

from shoal.reports.codecs import codec_figures


def event(layer, codec, raw, encoded, error, **more):
    told = {"layer": layer, "codec": codec, "raw_bytes": raw, "encoded_bytes": encoded}
    return {"kind": "codec", "table": "w", "error": error, **told, **more}


def test_figures_are_means_over_pushes_and_workers():
    events = [
        event("a", "int:8", 400, 100, 0.1, node="worker-0"),
        {"kind": "eval", "step": 3},
        event("a", "int:8", 400, 102, 0.3, node="worker-1"),
        event("b", "none", 40, 40, 0.0),
    ]
    found = codec_figures(events)
    assert found[("w", "b", "none")]["pushes"] == 1
    assert found[("w", "a", "int:8")] == {
        "raw_bytes": 400, "encoded_bytes": 101, "error": 0.2, "pushes": 2
    }  # fmt: skip


def test_a_run_without_codecs_has_none():
    assert codec_figures([{"kind": "step"}]) == {}
