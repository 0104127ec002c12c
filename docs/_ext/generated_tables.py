"""Two directives: the fields of a job's schema, and what `shoal list` prints.

{schema} shoal.runs.job.JobSpec
{registered} strategies
"""

import json
from importlib import import_module
from typing import Any, get_args, get_origin, get_type_hints

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective


class Generated(SphinxDirective):
    """Markdown that is made from the code."""

    required_arguments = 1

    def lines(self) -> list[str]:
        raise NotImplementedError

    def run(self) -> list[nodes.Node]:
        parent = nodes.Element()
        text = StringList(self.lines(), self.arguments[0])
        self.state.nested_parse(text, self.content_offset, parent)
        return parent.children


class Schema(Generated):
    """A definition for each field: its type, its default and its meaning."""

    def lines(self) -> list[str]:
        module, _, name = self.arguments[0].rpartition(".")
        schema = getattr(import_module(module), name)
        hints, defaults = get_type_hints(schema, include_extras=True), schema()
        lines: list[str] = []
        for field in schema.__struct_fields__:
            kind, meta = get_args(hints[field])
            default = getattr(defaults, field)
            shown = f"; default `{json.dumps(default)}`" if default or default == 0 else ""
            lines += [
                f"`{field}`",
                f": {meta.description}",
                f"  ({self.kind(kind)}{shown})",
            ]
            lines.append("")
        return lines

    def kind(self, kind: Any) -> str:
        if get_origin(kind) is not None and all(isinstance(each, str) for each in get_args(kind)):
            return " or ".join(f"`{each}`" for each in get_args(kind))
        names = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}
        name = get_origin(kind) or kind
        return names.get(name.__name__, {"dict": "table", "list": "array"}.get(name.__name__, ""))


class Registered(Generated):
    """The rows of `shoal list`, as a table."""

    def lines(self) -> list[str]:
        from shoal.apps.listing import rows_of

        columns, rows = rows_of(self.arguments[0])
        lines = [":::{list-table}", ":header-rows: 1", ""]
        for row in [columns, *((f"`{row[0]}`", *row[1:]) for row in rows)]:
            lines += [("* - " if at == 0 else "  - ") + cell for at, cell in enumerate(row)]
        return [*lines, "", ":::"]


def setup(app: Any) -> dict[str, bool]:
    app.add_directive("schema", Schema)
    app.add_directive("registered", Registered)
    return {"parallel_read_safe": True}
