"""All rows of a sparse table, in pieces, from several servers."""

import numpy as np
import pytest
import torch

from shoal.client.sparse import scans
from shoal.errors import InvalidValue
from shoal.tables.spec import Access, TableSpec

pytestmark = pytest.mark.real
SUM = {"access": Access("sum"), "merge": "sum"}


@pytest.mark.parametrize("piece_bytes", [1, 2000, 1 << 26])
def test_a_scan_brings_every_row_once(cluster, monkeypatch, piece_bytes):
    monkeypatch.setattr(scans, "PIECE_BYTES", piece_bytes)
    _, [client] = cluster(2)
    spec = TableSpec("words", 0, (3,), "float64", kind="sparse", **SUM)
    client.create_table(spec)
    assert list(client.scan("words")) == []
    random = np.random.default_rng(1)
    keys = random.choice(1 << 40, 5000, replace=False).astype(np.uint64) << np.uint64(20)
    values = torch.from_numpy(random.normal(size=(len(keys), 3)))
    client.push("words", values, keys).wait()
    pieces = list(client.scan("words"))
    assert (len(pieces) > 50) is (piece_bytes < 1 << 20)
    found = torch.cat([keys for keys, _ in pieces]).numpy().view(np.uint64)
    rows = torch.cat([rows for _, rows in pieces])
    order, wanted = np.argsort(found), np.argsort(keys)
    assert np.array_equal(found[order], keys[wanted])
    assert torch.equal(rows[order], values[wanted])


def test_a_scan_is_of_a_sparse_table(cluster):
    _, [client] = cluster(1)
    client.create_table(TableSpec("dense", 3))
    with pytest.raises(InvalidValue, match="is dense: scan is for sparse"):
        list(client.scan("dense"))
