"""Blocking: a client's operations, which wait for their results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

from torch import Tensor

from shoal.client.exchanges import Exchanges, Keys
from shoal.client.options import PullOptions, PushOptions, PushPullOptions
from shoal.node.future import Future
from shoal.protocol.requests import Exchange


class Blocking:
    """The operations of a `Client` that wait, and return results in place of futures.

    `client.blocking.pull("w")` is faster than `client.pull("w").wait()`: the calling thread does
    the socket work and wakes no other thread. Arguments, results and errors are those of the
    client's methods of the same names; errors of futures are raised.

    Example:
        >>> import shoal, torch
        >>> client = shoal.init().client
        >>> spec = client.create_table(shoal.TableSpec("docs/blocking", 2))
        >>> client.blocking.push("docs/blocking", torch.ones(2))
        >>> client.blocking.pull("docs/blocking")
        tensor([1., 1.])
    """

    def __init__(
        self,
        run: Callable[..., Future],
        exchanges: Exchanges,
        sum_up: Callable[[Tensor, bool], None],
    ) -> None:
        self._run = run
        self._sum_up = sum_up
        self._exchanges = exchanges

    def push(
        self, table: str, values: Tensor, keys: Keys = None, **options: Unpack[PushOptions]
    ) -> None:
        """Push as `Client.push` does, and wait."""
        self._run(self._exchanges.push(table, values, keys, **options)).result()

    def pull(
        self,
        table: str,
        keys: Keys = None,
        out: Tensor | None = None,
        **options: Unpack[PullOptions],
    ) -> Any:
        """Pull as `Client.pull` does; return the rows, or (values, lens) of a custom table."""
        return self._run(*self._exchanges.pull(table, keys, out, **options)).result()

    def request(self, group: str, head: int, body: bytes = b"", *, table: str) -> list[bytes]:
        """Send a request as `Client.request` does; return the answers of the handlers."""
        asked = self._run(*self._exchanges.request(table, group, head, body))
        answers: list[bytes] = asked.result()
        return answers

    def push_pull(
        self,
        table: str,
        values: Tensor,
        keys: Keys = None,
        out: Tensor | None = None,
        **options: Unpack[PushPullOptions],
    ) -> Tensor:
        """Push and pull as `Client.push_pull` does; return the rows."""
        asked = self._exchanges.push_pull(table, values, keys, out, **options)
        rows: Tensor = self._run(*asked).result()
        return rows

    def advance(self, *, last: bool = False) -> None:
        """Advance as `Client.advance` does, and wait."""
        self._run(Exchange(advance=True, last=last)).result()

    def all_reduce(self, tensor: Tensor, *, mean: bool = False) -> None:
        """Sum a tensor as `Client.all_reduce` does, and wait."""
        self._sum_up(tensor, mean)
