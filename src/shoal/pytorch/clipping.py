"""Clipping of gradients, including those of rows on servers."""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.errors import NotFinite
from shoal.pytorch.embedding import embeddings_of


def clip_grad_norm_(
    *modules: torch.nn.Module,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> Tensor:
    """Scale all gradients of modules, in place, so that their joint norm is at most `max_norm`.

    `torch.nn.utils.clip_grad_norm_` sees parameters, and not the rows of `shoal.nn.Embedding`,
    which are on servers. This function sees both: with g all gradients of this worker that are not
    pushed yet::

        g <- g min(1, max_norm / (||g|| + 1e-6))

    Args:
        modules: the modules whose parameters and embedding rows have gradients.
        max_norm: the largest norm, > 0.
        norm_type: the p of the p-norm; `math.inf` for the largest element.
        error_if_nonfinite: whether a norm that is a NaN or infinite is refused.

    Returns:
        The norm before the scaling, a scalar.

    Raises:
        NotFinite: the norm is a NaN or infinite, if `error_if_nonfinite`.

    Example:
        >>> import shoal, torch
        >>> context = shoal.init()
        >>> words = shoal.nn.Embedding(None, 2, table="docs/clipped")
        >>> (3 * words(torch.tensor([5]))).sum().backward()
        >>> norm = shoal.clip_grad_norm_(words, max_norm=1.0)
        >>> round(norm.item(), 3)
        4.243

    References:
        Pascanu, Mikolov & Bengio 2013, algorithm 1.
    """
    gradients = [p.grad for module in modules for p in module.parameters() if p.grad is not None]
    for module in embeddings_of(modules):
        gradients += [rows.grad for _, rows in module.pending if rows.grad is not None]
    if not gradients:
        return torch.tensor(0.0)
    distinct = list({each.data_ptr(): each for each in gradients}.values())
    norms = torch.stack([torch.linalg.vector_norm(each, norm_type) for each in distinct])
    total: Tensor = torch.linalg.vector_norm(norms, norm_type)
    if error_if_nonfinite and not total.isfinite():
        raise NotFinite(f"the gradients have the norm {total.item()}")
    scale = (max_norm / (total + 1e-6)).clamp(max=1.0)
    for each in distinct:
        each.mul_(scale.to(each.dtype))
    return total
