"""How a bug is planted: one method in place of another."""

from contextlib import contextmanager
from unittest.mock import patch


def replaced(owner, name, make):
    """A context in which `owner.name` is `make(the right one)`."""
    return patch.object(owner, name, make(getattr(owner, name)))


def then(after):
    """The right method, and then `after(self, *its arguments)`."""

    def make(right):
        def method(self, *args):
            right(self, *args)
            after(self, *args)

        return method

    return make


def first(before):
    """`before(self, *its arguments)`, and then the right method."""

    def make(right):
        def method(self, *args):
            before(self, *args)
            right(self, *args)

        return method

    return make


def instead(result):
    """Nothing but a result."""
    return lambda right: lambda *args, **more: result


def bug(owner, name, make, doc):
    """A planted bug: a context manager with a docstring."""

    @contextmanager
    def planted():
        with replaced(owner, name, make):
            yield

    planted.__doc__ = doc
    return planted
