"""Every law of a transport, on every transport."""

from itertools import count

import pytest

from shoal.testing.transports import TRANSPORT_LAWS
from shoal.transport.base import transport_for

_numbers = count()


@pytest.fixture(params=["inproc", "unix", "tcp"])
def make(request, tmp_path):
    def fresh():
        address = {
            "inproc": f"inproc://conformance-{next(_numbers)}",
            "unix": f"unix://{tmp_path}/{next(_numbers)}.sock",
            "tcp": "tcp://127.0.0.1:0",
        }[request.param]
        return transport_for(address), address

    return fresh


@pytest.mark.parametrize("law", TRANSPORT_LAWS, ids=lambda law: law.__name__)
def test_a_transport_keeps_the_law(law, make):
    law(make)
