"""State of a class is written in the module of that class, and nowhere else.

Looked at are assignments, item assignments, deletions and calls of containers' methods, on a field
of anything but `self`. A field belongs to the modules that have a class with a field of that name.
"""

import ast
from pathlib import Path

import pytest

import shoal

ROOT = Path(shoal.__file__).parent
ROOMS = ("protocol", "collective", "strategies", "node")  # machines, and what runs them
MODULES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
MUTATORS = {
    "add", "append", "appendleft", "clear", "difference_update", "discard", "extend", "insert",
    "intersection_update", "pop", "popitem", "popleft", "remove", "reverse", "setdefault", "sort",
    "symmetric_difference_update", "update",
}  # fmt: skip
CONTAINERS = {"dict", "list", "set", "deque", "Counter", "defaultdict", "tuple", "frozenset"}


def fields_of(cls: ast.ClassDef) -> set[str]:
    """The fields that a class declares, or that its methods give `self`."""
    found = {
        node.target.id
        for node in cls.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    for node in ast.walk(cls):
        targets = getattr(node, "targets", [getattr(node, "target", None)])
        for target in targets if isinstance(node, ast.Assign | ast.AnnAssign) else ():
            for each in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(each, ast.Attribute) and is_self(each.value):
                    found.add(each.attr)
    return found


def is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def containers_of(tree: ast.Module) -> set[str]:
    """The fields of a module's classes that are built-in containers."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign):
            target = node.target
            name = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")
            words = {n.id for n in ast.walk(node.annotation) if isinstance(n, ast.Name)}
            first = node.annotation
            first = first.value if isinstance(first, ast.Subscript) else first
            if isinstance(first, ast.Name) and first.id in CONTAINERS and words:
                found.add(name)
    return found


class Writes(ast.NodeVisitor):
    """The writes of one function to fields of other objects: (line, field)."""

    def __init__(self, containers: set[str]) -> None:
        self.found: list[tuple[int, str]] = []
        self._aliases: dict[str, str] = {}
        self._containers = containers

    def _field(self, node: ast.AST) -> str:
        """The field of another object that a node names, or an empty text."""
        while isinstance(node, ast.Subscript):
            node = node.value
        if isinstance(node, ast.Attribute) and not is_self(node.value):
            return node.attr
        return self._aliases.get(node.id, "") if isinstance(node, ast.Name) else ""

    def _write(self, node: ast.AST) -> None:
        for each in node.elts if isinstance(node, ast.Tuple | ast.List) else [node]:
            direct = isinstance(each, ast.Attribute | ast.Subscript)
            if direct and (field := self._field(each)):
                self.found.append((each.lineno, field))

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._write(target)
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            if len(names) == len(values):
                for name, value in zip(names, values, strict=True):
                    self._alias(name, value)
        self.generic_visit(node)

    def _alias(self, name: ast.AST, value: ast.AST) -> None:
        if isinstance(name, ast.Name):
            is_field = isinstance(value, ast.Attribute) and not is_self(value.value)
            kept = is_field and value.attr in self._containers
            self._aliases[name.id] = value.attr if kept else ""

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name) and (field := self._field(node.target)):
            self.found.append((node.lineno, field))
        self._write(node.target)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._write(node.target)
        self.generic_visit(node)

    def visit_Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            self._write(target)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        func = node.func
        if isinstance(func, ast.Attribute) and func.attr in MUTATORS:
            field = self._field(func.value)
            if field in self._containers:
                self.found.append((node.lineno, field))
            chained = func.value  # x.field.setdefault(...).append(...)
            if isinstance(chained, ast.Call) and isinstance(chained.func, ast.Attribute):
                field = self._field(chained.func.value)
                if field in self._containers:
                    self.found.append((node.lineno, field))
        self.generic_visit(node)


def foreign_writes(sources: dict[str, str]) -> list[str]:
    """Writes to the state of classes of other modules, as `module:line field`."""
    trees = {name: ast.parse(text) for name, text in sources.items()}
    own = {
        name: {
            field
            for cls in ast.walk(tree)
            if isinstance(cls, ast.ClassDef)
            for field in fields_of(cls)
        }
        for name, tree in trees.items()
    }
    containers = set().union(*map(containers_of, trees.values()))
    known = set().union(*own.values())
    found = []
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                writes = Writes(containers)
                for each in node.body:
                    writes.visit(each)
                found += [
                    f"{name}:{line} {field}"
                    for line, field in writes.found
                    if field in known and field not in own[name]
                ]
    return sorted(set(found))


def sources() -> dict[str, str]:
    return {str(path.relative_to(ROOT)): path.read_text() for path in MODULES}


def test_state_of_a_class_is_written_in_its_module_only():
    assert foreign_writes(sources()) == []


@pytest.mark.parametrize(
    "planted",
    [
        "log.forget_below = 3",
        "log.forget_below += 3",
        "log.outcomes[3] = 'applied'",
        "del log.outcomes[3]",
        "log.outcomes.pop(3)",
        "log.parts.setdefault(3, []).append(None)",
        "outcomes = log.outcomes\n        outcomes[3] = 'applied'",
        "outcomes, n = log.outcomes, 3\n        outcomes.clear()",
        "self._log.outcomes.clear()",
    ],
)
def test_a_planted_write_is_found(planted):
    bug = f"class Planted:\n    def planted(self, log):\n        {planted}\n"
    assert foreign_writes(sources() | {"planted.py": bug})
