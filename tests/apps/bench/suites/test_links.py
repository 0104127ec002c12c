"""Which codecs pay on a link."""

import pytest

from shoal.apps.bench.suites import links
from shoal.errors import DataMissing, InvalidValue


@pytest.mark.parametrize(
    ("text", "mbit"), [("100Mbit", 100), ("1 Gbit/s", 1000), ("64kbit", 0.064), ("local", 0)]
)
def test_rates_of_links(text, mbit):
    assert links.mbit_of(text) == mbit


@pytest.mark.parametrize("text", ["", "100", "fast", "0Mbit", "-1Mbit", "100MB", "1e3Mbit"])
def test_what_is_no_rate(text):
    with pytest.raises(InvalidValue, match="is a rate such as 100Mbit"):
        links.mbit_of(text)


def found(link, monkeypatch, ways=((s, c, p) for s, c, p in ())):
    monkeypatch.setattr(links, "WAYS", tuple(links.Exchanged(*way) for way in ways))
    return {row["name"]: row for row in links.rows(None, 1, link, "mlp", "digits")}


WAYS = [
    ("allreduce", "none", "none"),
    ("sync", "none", "none"),
    ("sync", "onebit", "none"),
    ("sync", "onebit", "delta:onebit"),
]


def test_codecs_pay_on_a_slow_link_and_not_in_memory(monkeypatch):
    """Times are simulated: these do not depend on how fast this machine is, but for computing."""
    slow = found("1Mbit", monkeypatch, WAYS)
    both = slow["sync, push onebit, pull delta:onebit"]
    assert both["value"] > 5 * slow["sync"]["value"]
    assert slow["sync, push onebit"]["value"] > 1.2 * slow["sync"]["value"]
    assert both["peer"] == max(slow["sync"]["value"], slow["allreduce"]["value"])
    assert links.advice([*slow.values()]).startswith("sync, push onebit, pull delta:onebit: ")
    here = found("local", monkeypatch, WAYS)
    assert links.advice([*here.values()]).startswith("none: ")
    assert all(row["ratio"] <= 1.01 for row in (*slow.values(), *here.values()))


def test_data_that_is_not_here(monkeypatch):
    with pytest.raises(DataMissing):
        list(links.rows(None, 1, "1Mbit", "cnn", "cifar10"))
