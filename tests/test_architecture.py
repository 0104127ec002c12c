"""The rooms: who may import whom, and what must not be found in which."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import shoal

ROOT = Path(shoal.__file__).parent
LEVELS = [
    {"errors", "extras", "keys", "lazy", "registry", "factories", "ownership", "jit"},
    {"tables", "codecs"},
    {"protocol"},
    {"transport", "collective", "storage", "data", "pushes"},
    {"strategies", "graph"},
    {"node", "simulation"},
    {"client"},
    {"pytorch"},
    {"engines", "nn", "testing"},
    {"runs"},
    {"apps", "reports"},
    {"cli", "ctr", "word2vec"},
]
LEVEL = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}
# Inside protocol/: what all roles share, then the roles, which do not import each other.
PROTOCOL_LEVELS = [
    {"limits", "session_options", "layout"},
    {"views"},
    {"messages", "consistency", "namespaces"},
    {"machine", "requests", "checkpoint_clocks"},
    {"questions"},
    {"session", "admin", "supervision"},
    {"worker", "server", "scheduler"},
]
PROTOCOL_LEVEL = {room: level for level, rooms in enumerate(PROTOCOL_LEVELS) for room in rooms}
ROLES = {"worker", "server", "scheduler"}
PROTOCOL_ARROWS = 40
MODULES = sorted(ROOT.rglob("*.py"))
FORBIDDEN = {"time", "random", "socket", "threading", "asyncio", "os"}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


@cache
def imported_modules(path: Path) -> set[str]:
    """The modules of Shoal that a file imports, by full name; a package's own name for its init."""
    found = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in NAMES else node.module)
    return found & NAMES.keys()


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {module_name(path): path for path in MODULES}


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_to_the_same_or_a_lower_level(path):
    room = room_of(path)
    if room in ("__init__", "__main__", "keys", "registry", "errors"):
        return
    for name in imports(path):
        parts = name.split(".")
        if parts[0] != "shoal" or len(parts) < 2:
            continue
        other = parts[1]
        assert LEVEL[other] <= LEVEL[room], f"{room} imports {name}"
        assert {room, other} != {"node", "simulation"}, f"{room} imports its sibling {other}"


def components(graph: dict[str, set[str]]) -> list[list[str]]:
    """The circles of a graph: Tarjan's strongly connected components of more than one node."""
    index, low, stack, found = {}, {}, [], []

    def visit(name):
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in index:
                visit(other)
            if other in stack:
                low[name] = min(low[name], low[other])
        if low[name] == index[name]:
            at = stack.index(name)
            if len(stack[at:]) > 1:
                found.append(stack[at:])
            del stack[at:]

    for name in sorted(graph):
        if name not in index:
            visit(name)
    return found


def inside(folder: str, graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """The arrows between the files and folders that are directly in a folder."""

    def unit(name: str) -> str:
        return (
            name.removeprefix(f"{folder}.").split(".")[0] if name.startswith(f"{folder}.") else ""
        )

    found: dict[str, set[str]] = {}
    for name, others in graph.items():
        if one := unit(name):
            found.setdefault(one, set()).update({unit(each) for each in others} - {one, ""})
    return found


@cache
def module_graph() -> dict[str, set[str]]:
    graph = {name: imported_modules(path) - {name, "shoal"} for name, path in NAMES.items()}
    del graph["shoal"]  # loads the public names when they are first used
    return graph


FOLDERS = sorted({module_name(path / "__init__.py") for path in {each.parent for each in MODULES}})


def test_imports_have_no_circle():
    assert components(module_graph()) == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_rooms_of_a_folder_have_an_order(folder):
    """No two of its files and folders know each other, so that no arrow points up."""
    assert components(inside(folder, module_graph())) == []


def test_a_circle_of_rooms_is_found():
    """Of files there is none: `chains` knows `state`, and another file of `state` knows it."""
    graph = {"a.chains.link": {"a.state.replica"}, "a.state.replica": set()}
    assert components(inside("a", graph)) == []
    graph["a.state.late"] = {"a.chains.link"}
    assert components(graph) == []
    assert [sorted(each) for each in components(inside("a", graph))] == [["chains", "state"]]


ARGUMENTS = 8  # of a constructor, that may be given by their place


def careless_calls(tree: ast.Module) -> list[int]:
    """The lines of constructors with too many arguments, and of calls that splat a literal."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            found += [node.lineno] if len(node.args.args) - 1 > ARGUMENTS else []
        elif isinstance(node, ast.Call):
            splats = [each.value for each in node.args if isinstance(each, ast.Starred)]
            found += [each.lineno for each in splats if isinstance(each, ast.Tuple | ast.List)]
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_constructors_have_few_arguments_and_none_is_splatted(path):
    assert careless_calls(tree_of(path)) == []


@pytest.mark.parametrize(
    "planted",
    [
        "Executor(*(session, clocks), chains)",
        "Executor(*[session, clocks])",
        "class Executor:\n    def __init__(self, a, b, c, d, e, f, g, h, i): ...",
    ],
)
def test_a_careless_call_is_found(planted):
    assert careless_calls(ast.parse(planted))


def protocol_arrows() -> set[tuple[str, str]]:
    """(who, whom): the folders of `protocol/` and the files directly in it."""

    def unit(name: str) -> str:
        return name.split(".")[2] if name.count(".") > 1 else ""

    pairs = {
        (unit(name), unit(other))
        for name, path in NAMES.items()
        if name.startswith("shoal.protocol.")
        for other in imported_modules(path)
        if other.startswith("shoal.protocol.")
    }
    return {(one, other) for one, other in pairs if one != other}


def test_roles_do_not_import_each_other():
    for one, other in sorted(protocol_arrows()):
        assert not {one, other} <= ROLES, f"{one} imports {other}"
        assert PROTOCOL_LEVEL[other] <= PROTOCOL_LEVEL[one], f"{one} imports {other}"


def test_the_protocol_folders_have_few_arrows():
    """All of them name the numbers and types of `limits`, which says nothing of their structure."""
    assert len([arrow for arrow in protocol_arrows() if arrow[1] != "limits"]) <= PROTOCOL_ARROWS


@pytest.mark.parametrize("room", ["tables", "simulation"])
def test_tables_and_simulation_use_no_clock_and_no_network(room):
    for path in (ROOT / room).rglob("*.py"):
        roots = {name.split(".")[0] for name in imports(path)}
        assert not roots & {"time", "datetime", "socket", "selectors"}, path


@pytest.mark.parametrize("room", ["protocol", "strategies"])
def test_protocol_and_strategies_use_no_clock_no_randomness_and_no_io(room):
    for path in (ROOT / room).rglob("*.py"):
        roots = {name.split(".")[0] for name in imports(path)}
        assert not roots & FORBIDDEN, f"{path}: {roots & FORBIDDEN}"
        for node in ast.walk(tree_of(path)):
            looped = node.iter if isinstance(node, ast.For | ast.comprehension) else None
            is_set = isinstance(looped, ast.Set | ast.SetComp) or (
                isinstance(looped, ast.Call)
                and isinstance(looped.func, ast.Name)
                and looped.func.id in ("set", "frozenset")
            )
            assert not is_set, f"{path}:{looped.lineno} iterates over a set"


def test_environment_variables_are_read_in_listed_files_only():
    allowed = {"cli/training.py", "cli/tools.py", "cli/comparing.py", "engines/fork_server.py"}
    allowed |= {"cli/cluster.py", "engines/joining.py", "runs/ranks.py"}
    allowed.add("transport/credentials.py")  # a host's, for all processes there
    allowed.add("jit.py")  # where the user's cache is
    allowed.add("apps/bench/baselines/peers.py")  # sets some, for gloo and Ray
    found = {str(path.relative_to(ROOT)) for path in MODULES if "os.environ" in path.read_text()}
    assert found <= allowed


SHELLS = {("torch", "load"), ("os", "system"), ("os", "popen")}


def executes(tree):
    """The lines of a module that unpickle, evaluate, or give text to a shell."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name("eval" | "exec")):
                yield node.lineno
            case ast.Attribute(ast.Name(module), name) if (module, name) in SHELLS:
                yield node.lineno
            case ast.keyword("allow_pickle" | "shell", value):
                if not (isinstance(value, ast.Constant) and value.value is False):
                    yield value.lineno


def sizes_of_rows(tree):
    """The lines of a module that multiply by a table's `row_bytes`, or would."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "row_bytes":
            yield node.lineno


def test_only_tables_and_the_layout_know_the_bytes_of_a_row():
    """All others ask `Layout`: a codec that changes them has one place to change."""
    for path in MODULES:
        if room_of(path) != "tables" and path != ROOT / "protocol" / "layout.py":
            assert not list(sizes_of_rows(tree_of(path))), path


def test_a_size_of_rows_is_found():
    assert list(sizes_of_rows(ast.parse("size = len(rows) * spec.row_bytes"))) == [1]
    assert not list(sizes_of_rows(ast.parse("size = Layout(spec).nbytes(len(rows))")))


def test_nothing_is_unpickled_or_evaluated():
    for path in MODULES:
        roots = {name.split(".")[0] for name in imports(path)}
        assert not roots & {"pickle", "marshal", "dill", "cloudpickle", "shelve"}, path
        assert not list(executes(tree_of(path))), path


@pytest.mark.parametrize(
    "source",
    [
        "eval(text)",
        "exec(text)",
        "torch.load(path)",
        "os.system(text)",
        "os.popen(text)",
        "np.load(path, allow_pickle=True)",
        "np.load(path, allow_pickle=chosen)",
        "subprocess.run(text, shell=True)",
    ],
)
def test_what_unpickles_or_evaluates_is_found(source):
    assert list(executes(ast.parse(source))) == [1]


@pytest.mark.parametrize(
    "source", ["model.eval()", "np.load(path, allow_pickle=False)", "subprocess.run([name])"]
)
def test_what_does_not_is_left_alone(source):
    assert not list(executes(ast.parse(source)))


@pytest.mark.usefixtures("processes_are_those_of_users")
@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        (
            "shoal.protocol.worker.machine, shoal.protocol.server.machine, "
            "shoal.protocol.scheduler.machine",
            "torch numpy",
        ),
        ("shoal.transport, shoal.engines.roles", "torch numpy"),
        ("shoal, shoal.strategies, shoal.cli, shoal.apps.train.command", "torch"),
    ],
)
def test_light_modules_import_without_torch(modules, absent):
    code = f"import sys, {modules}\nprint([m for m in {absent.split()} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


FUNCTION_LINES = 70


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_functions_are_within_their_length_limit(path):
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            lines = node.end_lineno - body[0].lineno + 1 if body else 0
            assert lines <= FUNCTION_LINES, f"{node.name} has {lines} lines"


@pytest.mark.parametrize("room", ["protocol", "strategies"])
def test_protocol_and_strategies_have_no_mutable_module_state(room):
    makers = {"dict", "list", "set", "defaultdict", "Counter", "deque", "count"}
    for path in (ROOT / room).rglob("*.py"):
        tree = tree_of(path)
        assert not any(isinstance(node, ast.Global) for node in ast.walk(tree)), path
        for node in tree.body:
            value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
            if value is None or "__all__" in ast.unparse(node):
                continue
            called = isinstance(value, ast.Call) and isinstance(value.func, ast.Name)
            mutable = isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp)
            mutable = mutable or (called and value.func.id in makers)
            assert not mutable, f"{path}:{node.lineno}"
