"""The rooms: who may import whom, and what must not be found in which."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import shoal

ROOT = Path(shoal.__file__).parent
LEVELS = [
    {"errors", "keys", "registry", "factories", "ownership"},
    {"tables", "codecs"},
    {"protocol"},
    {"transport", "collective", "storage", "data"},
    {"strategies", "graph"},
    {"node", "simulation"},
    {"client"},
    {"pytorch"},
    {"engines", "nn", "testing"},
    {"jobs"},
    {"apps", "reports"},
    {"cli", "ctr", "word2vec"},
]
LEVEL = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}
# Inside protocol/: what all roles share, then the roles, which do not import each other.
PROTOCOL_LEVELS = [
    {"limits", "session_options"},
    {"views"},
    {"messages", "consistency", "namespaces"},
    {"machine", "requests", "checkpoint_clocks"},
    {"questions"},
    {"session", "admin", "supervision"},
    {"worker", "server", "scheduler"},
]
PROTOCOL_LEVEL = {room: level for level, rooms in enumerate(PROTOCOL_LEVELS) for room in rooms}
ROLES = {"worker", "server", "scheduler"}
FILES_IN_A_FOLDER, PROTOCOL_ARROWS = 16, 40
MODULES = sorted(ROOT.rglob("*.py"))
FORBIDDEN = {"time", "random", "socket", "threading", "asyncio", "os"}


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def imported_modules(path: Path) -> set[str]:
    """The modules of Shoal that a file imports, by full name; a package's own name for its init."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
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


def test_imports_have_no_circle():
    """Tarjan's strongly connected components, each of which is to be one module."""
    graph = {name: imported_modules(path) - {name} for name, path in NAMES.items()}
    del graph["shoal"]  # loads the public names when they are first used
    index, low, stack, circles = {}, {}, [], []

    def visit(name):
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(graph[name] - {"shoal"}):
            if other not in index:
                visit(other)
            if other in stack:
                low[name] = min(low[name], low[other])
        if low[name] == index[name]:
            at = stack.index(name)
            if len(stack[at:]) > 1:
                circles.append(stack[at:])
            del stack[at:]

    for name in sorted(graph):
        if name not in index:
            visit(name)
    assert not circles


def test_no_folder_has_too_many_files():
    folders = {path.parent for path in MODULES}
    counts = {str(each.relative_to(ROOT)): len(list(each.glob("*.py"))) for each in folders}
    assert not {each: count for each, count in counts.items() if count > FILES_IN_A_FOLDER}


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
        for node in ast.walk(ast.parse(path.read_text())):
            looped = node.iter if isinstance(node, ast.For | ast.comprehension) else None
            is_set = isinstance(looped, ast.Set | ast.SetComp) or (
                isinstance(looped, ast.Call)
                and isinstance(looped.func, ast.Name)
                and looped.func.id in ("set", "frozenset")
            )
            assert not is_set, f"{path}:{looped.lineno} iterates over a set"


def test_environment_variables_are_read_in_listed_files_only():
    allowed = {"cli/training.py", "cli/tools.py", "cli/comparing.py", "engines/launcher.py"}
    allowed.add("engines/joining.py")
    allowed.add("tables/sparse/jit.py")  # where the user's cache is
    allowed |= {
        "collective/process_group.py",
        "apps/bench/baselines/peers.py",
    }  # set some, for gloo and Ray
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


def test_nothing_is_unpickled_or_evaluated():
    for path in MODULES:
        roots = {name.split(".")[0] for name in imports(path)}
        assert not roots & {"pickle", "marshal", "dill", "cloudpickle", "shelve"}, path
        assert not list(executes(ast.parse(path.read_text()))), path


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


FILE_LINES, FUNCTION_LINES = 400, 70


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_and_functions_are_within_their_length_limits(path):
    text = path.read_text()
    assert text.count("\n") <= FILE_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            lines = node.end_lineno - body[0].lineno + 1 if body else 0
            assert lines <= FUNCTION_LINES, f"{node.name} has {lines} lines"


def test_files_of_tests_are_within_their_length_limit():
    tests = {path: path.read_text().count("\n") for path in Path(__file__).parent.rglob("*.py")}
    assert {str(path): lines for path, lines in tests.items() if lines > FILE_LINES} == {}


@pytest.mark.parametrize("room", ["protocol", "strategies"])
def test_protocol_and_strategies_have_no_mutable_module_state(room):
    makers = {"dict", "list", "set", "defaultdict", "Counter", "deque", "count"}
    for path in (ROOT / room).rglob("*.py"):
        tree = ast.parse(path.read_text())
        assert not any(isinstance(node, ast.Global) for node in ast.walk(tree)), path
        for node in tree.body:
            value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
            if value is None or "__all__" in ast.unparse(node):
                continue
            called = isinstance(value, ast.Call) and isinstance(value.func, ast.Name)
            mutable = isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp)
            mutable = mutable or (called and value.func.id in makers)
            assert not mutable, f"{path}:{node.lineno}"
