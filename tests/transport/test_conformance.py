"""Every law of a transport, on every transport."""

from contextlib import nullcontext
from itertools import count

import pytest

from shoal.testing.transports import TRANSPORT_LAWS
from shoal.transport.base import transport_for
from shoal.transport.shortcut import without_shortcut
from tests.transport.rigs import keys_of

_numbers = count()


@pytest.fixture(
    params=["inproc", "unix", "tcp", "tcp by its shortcut", "tls", "tls by its shortcut"]
)
def make(request, tmp_path, monkeypatch):
    scheme = request.param.partition(" ")[0]
    if scheme == "tls":
        monkeypatch.setenv("SHOAL_TLS", str(keys_of("conformance")))

    def fresh():
        address = {
            "inproc": f"inproc://conformance-{next(_numbers)}",
            "unix": f"unix://{tmp_path}/{next(_numbers)}.sock",
        }.get(scheme, f"{scheme}://127.0.0.1:0")
        return transport_for(address), address

    with nullcontext() if "shortcut" in request.param else without_shortcut():
        yield fresh


@pytest.mark.parametrize("law", TRANSPORT_LAWS, ids=lambda law: law.__name__)
def test_a_transport_keeps_the_law(law, make):
    law(make)
