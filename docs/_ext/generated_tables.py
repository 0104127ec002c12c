"""Two directives: the fields of a job's schema, and what `shoal list` prints, as tables.

{schema} shoal.jobs.spec.JobSpec
{registered} strategies
"""

from importlib import import_module
from typing import Any, get_args, get_origin, get_type_hints

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective


class TableDirective(SphinxDirective):
    """A list-table made of rows of Markdown; the first row is the header."""

    required_arguments = 1

    def rows(self) -> list[tuple[str, ...]]:
        raise NotImplementedError

    def run(self) -> list[nodes.Node]:
        lines = [":::{list-table}", ":header-rows: 1", ":class: generated", ""]
        for row in self.rows():
            lines += [("* - " if at == 0 else "  - ") + cell for at, cell in enumerate(row)]
        lines += ["", ":::"]
        parent = nodes.Element()
        self.state.nested_parse(StringList(lines, self.arguments[0]), self.content_offset, parent)
        return parent.children


class Schema(TableDirective):
    def rows(self) -> list[tuple[str, ...]]:
        module, _, name = self.arguments[0].rpartition(".")
        schema = getattr(import_module(module), name)
        hints, defaults = get_type_hints(schema, include_extras=True), schema()
        rows = [("key", "type", "default", "meaning")]
        for field in schema.__struct_fields__:
            kind, meta = get_args(hints[field])
            default = getattr(defaults, field)
            shown = f"`{default!r}`" if default or default == 0 else ""
            rows.append((f"`{field}`", self.kind(kind), shown, meta.description))
        return rows

    def kind(self, kind: Any) -> str:
        if get_origin(kind) is not None and all(isinstance(each, str) for each in get_args(kind)):
            return " \\| ".join(f"`{each}`" for each in get_args(kind))
        names = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}
        name = get_origin(kind) or kind
        return names.get(name.__name__, {"dict": "table", "list": "array"}.get(name.__name__, ""))


class Registered(TableDirective):
    def rows(self) -> list[tuple[str, ...]]:
        from shoal.apps.listing import rows_of

        columns, rows = rows_of(self.arguments[0])
        return [columns, *((f"`{row[0]}`", *row[1:]) for row in rows)]


def setup(app: Any) -> dict[str, bool]:
    app.add_directive("schema", Schema)
    app.add_directive("registered", Registered)
    return {"parallel_read_safe": True}
