"""Registry of the access methods of dense tables.

Another package adds an `AccessMethod` through the entry-point group `shoal.access_methods`.
"""

from __future__ import annotations

from shoal.errors import InvalidValue
from shoal.registry import Registry
from shoal.tables.access import AccessMethod, Assign, Sum
from shoal.tables.dense.optimizers import SGD, Adadelta, Adagrad, Adam, RMSprop
from shoal.tables.dense.torch_methods import ASGD, Adamax, NAdam, RAdam, Rprop
from shoal.tables.spec import Access, TableSpec

access_methods: Registry[type[AccessMethod]] = Registry("access method")
_VALUES = (Sum, Assign)
_GRADIENTS = (SGD, Adagrad, RMSprop, Adadelta, Adam, NAdam, RAdam, Adamax, ASGD, Rprop)
for _method in (*_VALUES, *_GRADIENTS):
    access_methods.add(_method.name, _method)
BUILT_IN = frozenset(access_methods)


def make(access: Access) -> AccessMethod:
    """Return the access method of a name, with its options.

    Raises:
        UnknownName: no such method, or it has no such option.
        InvalidValue: an option's value is out of its range.

    >>> make(Access("adam", {"lr": 0.5, "amsgrad": True})).slots()
    ('exp_avg', 'exp_avg_sq', 'max_exp_avg_sq')
    """
    return access_methods[access.name](access.options)


def method_of(spec: TableSpec) -> AccessMethod:
    """Return the access method of a dense table.

    Raises:
        UnknownName: no such method, or it has no such option.
        InvalidValue: an option out of its range, or a dtype that the method does not support.
    """
    method = make(spec.access)
    if not method.supports(spec.dtype):
        raise InvalidValue(
            f"table {spec.name!r}: access method {spec.access.name!r} does not support "
            f"{spec.dtype} rows (supported: {', '.join(sorted(method.dtypes))})"
        )
    return method
