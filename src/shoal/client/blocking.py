"""Blocking: a client's operations, waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

from torch import Tensor

from shoal.client.exchanges import Exchanges, Keys
from shoal.client.options import PullOptions, PushOptions, PushPullOptions
from shoal.collective.tensors import reduce_of
from shoal.node.future import Future
from shoal.protocol.requests import Exchange


class Blocking:
    """The operations of a `Client`, waited for: they return results in place of futures.

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

    def __init__(self, run: Callable[..., Future], exchanges: Exchanges) -> None:
        self._run = run
        self._exchanges = exchanges

    def push(
        self, table: str, values: Tensor, keys: Keys = None, **options: Unpack[PushOptions]
    ) -> None:
        """`Client.push`, waited for."""
        self._run(self._exchanges.push(table, values, keys, **options)).result()

    def pull(
        self,
        table: str,
        keys: Keys = None,
        out: Tensor | None = None,
        **options: Unpack[PullOptions],
    ) -> Any:
        """`Client.pull`, waited for: the rows, or (values, lens) of a custom table."""
        return self._run(*self._exchanges.pull(table, keys, out, **options)).result()

    def request(self, group: str, head: int, body: bytes = b"", *, table: str) -> list[bytes]:
        """`Client.request`, waited for: the handlers' answers."""
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
        """`Client.push_pull`, waited for: the rows."""
        asked = self._exchanges.push_pull(table, values, keys, out, **options)
        rows: Tensor = self._run(*asked).result()
        return rows

    def advance(self, *, last: bool = False) -> None:
        """`Client.advance`, waited for."""
        self._run(Exchange(advance=True, last=last)).result()

    def all_reduce(self, tensor: Tensor, *, mean: bool = False) -> None:
        """`Client.all_reduce`, waited for."""
        self._run(reduce_of(tensor, mean)).result()
