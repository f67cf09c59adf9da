"""The sizes and names of the house style: reports what exceeds a limit."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import cohesion

# `make lint` runs them, and `make test` does not.
pytestmark = pytest.mark.lint

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src" / "penstock").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))

MODULE_LINES_MAX = 1_000
FUNCTION_LINES_MAX = 100
CLASS_METHODS_MAX = 20
CONSTRUCTOR_PARAMETERS_MAX = 8
TEST_MODULE_LINES_MAX = 900
BANNED_MODULE_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}

# What only one module may call: elsewhere it is passed in.
ONE_PLACE = {
    r"\btime\.(time|time_ns)\(": {"core/clock.py"},
    r"\bpickle\.loads?\(": set(),
    r"(?<![\w.])(eval|exec)\(": set(),
    r"shell=True": set(),
}

# Names that start a thread, a task or a loop, and classes that do so if they are derived from. Code
# that uses one of them must notice an unexpected end, so each use is listed with its reason.
# Starlette's `run_in_threadpool` is not among them: it is awaited, and a thread that cannot be
# started raises before its work is given away.
STARTS = {
    "_thread.start_new_thread",
    *(f"anyio.{name}" for name in ("create_task_group", "from_thread")),
    *(
        f"asyncio.{name}"
        for name in (
            *("Runner", "TaskGroup", "create_task", "ensure_future", "run"),
            *("run_coroutine_threadsafe", "start_server", "start_unix_server", "to_thread"),
        )
    ),
    *(f"concurrent.futures.{kind}PoolExecutor" for kind in ("Process", "Thread")),
    "http.server.ThreadingHTTPServer",
    *(f"multiprocessing.{name}" for name in ("Pool", "Process")),
    "socketserver.ThreadingMixIn",
    *(f"threading.{name}" for name in ("Thread", "Timer")),
}
START_METHODS = {"create_task", "run_forever", "run_in_executor", "run_until_complete"}
# For each module and name the number of uses, so that a further one needs a reason, too.
STARTING = {
    ("broker/server.py", "asyncio.Runner"): (1, "runs the broker's loop, which is watched"),
    ("core/threads.py", "threading.Thread"): (2, "owns threads"),
    ("core/loop_tasks.py", ".create_task"): (1, "owns tasks"),
    ("core/loop_tasks.py", ".run_forever"): (1, "owns loops on threads"),
    ("core/loop_tasks.py", ".run_in_executor"): (1, "withdraws work of which the submit raised"),
    ("core/loop_tasks.py", ".run_until_complete"): (3, "ends a loop on its own thread"),
    ("core/loop_tasks.py", "asyncio.run_coroutine_threadsafe"): (1, "owns loops on threads"),
    ("mailbox/lanes.py", "concurrent.futures.ThreadPoolExecutor"): (
        1,
        "replaces a pool that starts no thread, and fails the work",
    ),
    ("services/host/query_jail.py", "asyncio.run"): (1, "is the whole of a small process"),
    ("services/host/query_jail.py", "asyncio.create_task"): (2, "end the JVM if they fail"),
    ("services/api/overview.py", "concurrent.futures.ThreadPoolExecutor"): (
        1,
        "waits for all results in a `with` block",
    ),
    ("services/cli/subscribe.py", "asyncio.run"): (1, "a command, which ends with its loop"),
    ("services/demo/demo_run.py", "concurrent.futures.ThreadPoolExecutor"): (
        1,
        "waits for all results in a `with` block",
    ),
    ("services/http_server.py", "asyncio.Runner"): (1, "on an owned thread; the loop is watched"),
    ("storage/queue/group_commit.py", "concurrent.futures.ThreadPoolExecutor"): (
        1,
        "starts one thread with its owner, and withdraws work of which the submit raised",
    ),
}


# A handler that restores state and raises, again or another exception, must catch BaseException.
# One that restores nothing states why behind its `except`: translates, warns, adds a note, reacts
# to this error alone.
NARROW = re.compile(r"# narrow: \S.*$")
# Names of loggers where a module does not make its own: a journal may be called `log`.
LOGGERS = {"logger", "_logger", "LOG", "self.logger", "self._logger"}


def tree_of(path: Path) -> ast.Module:
    return _trees()[path]


@functools.cache
def _trees() -> dict[Path, ast.Module]:
    return {one.path: one.tree for one in cohesion.read_modules(ROOT / "src").values()}


@functools.cache
def nodes_of(tree: ast.Module) -> list[ast.AST]:
    return list(ast.walk(tree))


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in nodes_of(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def lines_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of code and comments, the docstring left out: what a reader must hold in mind."""
    total = (node.end_lineno or node.lineno) - node.lineno + 1
    first = node.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        total -= (first.end_lineno or first.lineno) - first.lineno + 1
    return total


def is_overload(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """One more signature of a method is no further method."""
    return any(isinstance(d, ast.Name) and d.id == "overload" for d in node.decorator_list)


def test_modules_functions_and_classes_keep_their_sizes() -> None:
    over: list[str] = []
    for path in SOURCES:
        text = path.read_text()
        name = path.relative_to(ROOT)
        tree = tree_of(path)
        if text.count("\n") > MODULE_LINES_MAX:
            over.append(f"{name}: {text.count(chr(10))} lines")
        for node in functions(tree):
            if lines_of(node) > FUNCTION_LINES_MAX:
                over.append(f"{name}:{node.lineno} {node.name}: {lines_of(node)} lines")
            parameters = len(node.args.args) + len(node.args.kwonlyargs) - 1
            if node.name == "__init__" and parameters > CONSTRUCTOR_PARAMETERS_MAX:
                over.append(f"{name}:{node.lineno}: a constructor with {parameters} parameters")
        for cls in (node for node in nodes_of(tree) if isinstance(node, ast.ClassDef)):
            public = [
                node
                for node in cls.body
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                and not node.name.startswith("_")
                and not is_overload(node)
            ]
            if len(public) > CLASS_METHODS_MAX:
                over.append(f"{name}:{cls.lineno} {cls.name}: {len(public)} public methods")
    for path in TESTS:
        count = path.read_text().count("\n")
        if count > TEST_MODULE_LINES_MAX:
            over.append(f"{path.relative_to(ROOT)}: {count} lines")
    assert not over, "split by concept:\n" + "\n".join(over)


def test_modules_are_named_for_what_they_hold() -> None:
    assert not [path for path in SOURCES if path.stem in BANNED_MODULE_NAMES]


@pytest.mark.parametrize("pattern", sorted(ONE_PLACE))
def test_what_is_passed_in_is_not_called(pattern: str) -> None:
    allowed = ONE_PLACE[pattern]
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in SOURCES
        if str(path.relative_to(ROOT / "src" / "penstock")) not in allowed
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(pattern, line)
    ]
    assert not found, "\n".join(found)


def imported_names(tree: ast.Module) -> dict[str, str]:
    """Return the full names of what a module imports, at its top or in functions."""
    names: dict[str, str] = {}
    for node in nodes_of(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                first = one.name.partition(".")[0]
                names[one.asname or first] = one.name if one.asname else first
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for one in node.names:
                names[one.asname or one.name] = f"{node.module}.{one.name}"
    return names


def full_name(node: ast.expr, names: dict[str, str]) -> str:
    """Return the full name of an expression such as `futures.ThreadPoolExecutor`, or ""."""
    if isinstance(node, ast.Name):
        return names.get(node.id, "")
    if isinstance(node, ast.Attribute):
        base = full_name(node.value, names)
        return f"{base}.{node.attr}" if base else ""
    return ""


def evaluated(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes below one, without annotations."""
    for name, value in ast.iter_fields(node):
        if name in {"annotation", "returns"}:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield child
                yield from evaluated(child)


def starts_of(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield lines at which a thread, a task or a loop may be started, and by which name."""
    names = imported_names(tree)
    for node in evaluated(tree):
        if isinstance(node, ast.Name | ast.Attribute) and full_name(node, names) in STARTS:
            yield node.lineno, full_name(node, names)
        elif isinstance(node, ast.Attribute) and node.attr in START_METHODS:
            yield node.lineno, f".{node.attr}"


def test_threads_and_tasks_are_started_where_their_end_is_noticed() -> None:
    package = ROOT / "src" / "penstock"
    found = [
        (str(path.relative_to(package)), name, line)
        for path in SOURCES
        # Never part of a process of Penstock.
        if not path.is_relative_to(package / "testing")
        for line, name in starts_of(tree_of(path))
    ]
    unowned = [
        f"{path}:{line}: {name}" for path, name, line in found if (path, name) not in STARTING
    ]
    assert not unowned, "use core/threads.py or core/loop_tasks.py:\n" + "\n".join(unowned)
    uses = Counter((path, name) for path, name, _ in found)
    expected = {use: count for use, (count, _) in STARTING.items()}
    assert uses == expected, "state the number of uses, and why their ends are noticed"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import threading\nthreading.Thread(target=f).start()", ["threading.Thread"]),
        ("import threading as t\nt.Timer(1, f)", ["threading.Timer"]),
        ("from threading import Thread as T\nT(target=f)", ["threading.Thread"]),
        ("import threading\nclass A(threading.Thread): pass", ["threading.Thread"]),
        ("import threading\nmake = threading.Thread", ["threading.Thread"]),
        ("import threading\nthreads: list[threading.Thread] = []", []),
        ("import threading\ndef f(t: threading.Thread) -> threading.Thread: ...", []),
        (
            "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(2): pass",
            ["concurrent.futures.ThreadPoolExecutor"],
        ),
        (
            "from concurrent import futures\nfutures.ThreadPoolExecutor(2)",
            ["concurrent.futures.ThreadPoolExecutor"],
        ),
        ("import asyncio\nasync def f(): await asyncio.to_thread(g)", ["asyncio.to_thread"]),
        ("import asyncio\nasyncio.ensure_future(g())", ["asyncio.ensure_future"]),
        (
            "def f():\n    import asyncio\n    asyncio.create_task(g())",
            ["asyncio.create_task"],
        ),
        (
            "import asyncio\nasync def f():\n async with asyncio.TaskGroup() as g:g.create_task(h)",
            ["asyncio.TaskGroup", ".create_task"],
        ),
        ("loop.run_in_executor(None, f)", [".run_in_executor"]),
        ("loop.run_until_complete(f())", [".run_until_complete"]),
        ("import asyncio\nasyncio.run(f())", ["asyncio.run"]),
        ("from asyncio import Runner\nwith Runner() as runner: pass", ["asyncio.Runner"]),
        ("import asyncio\nawait asyncio.gather(f(), g())", []),
    ],
)
def test_the_rule_of_starts_knows_its_cases(text: str, found: list[str]) -> None:
    tree = ast.parse(text)
    assert [name for _, name in starts_of(tree)] == found


def test_a_number_in_a_sentence_and_its_noun_agree() -> None:
    """`counted` of core/errors returns "1 file" and "2 files"; a fixed plural cannot."""
    nouns = "events|files|FlowFiles|messages|partitions|records|rows|segments|tasks|topics"
    plural = re.compile(
        rf"%d ([a-z]+ )?(bytes|{nouns})\b|{{len\([^{{}}]*\)}} ([a-z]+ )?({nouns})\b"
    )
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in SOURCES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if plural.search(line)
    ]
    assert not found, "\n".join(found)


def test_every_module_says_what_it_is() -> None:
    assert not [str(path) for path in SOURCES if not ast.get_docstring(tree_of(path))]


def test_work_of_spark_names_the_memory_limit_that_it_exceeds() -> None:
    unlimited = re.compile(r"\.mapInArrow\((?!\s*limited\()")
    found = [str(path.relative_to(ROOT)) for path in SOURCES if unlimited.search(path.read_text())]
    assert not found, f"pass `limited(work)` of `spark.pieces`: {found}"


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a body, and those in blocks of it; not those of functions."""
    for one in body:
        yield one
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        for child in ast.iter_child_nodes(one):
            if isinstance(child, ast.stmt):
                yield from statements([child])


def ends_with_raise(body: list[ast.stmt]) -> bool:
    """Say whether the last statement raises again, in a `with` of its own or not."""
    last = body[-1]
    if isinstance(last, ast.With | ast.AsyncWith):
        return ends_with_raise(last.body)
    return isinstance(last, ast.Raise) and last.exc is None


def loggers_of(tree: ast.Module) -> set[str]:
    """Return the names that a module gives to its loggers, and those that loggers have anywhere."""
    made = (
        node.targets[0]
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func) == "logging.getLogger"
    )
    return LOGGERS | {ast.unparse(one) for one in made}


def called(value: ast.expr | None) -> ast.expr | None:
    """Return the function that an expression calls, awaited or not; None without a call."""
    call = value.value if isinstance(value, ast.Await) else value
    return call.func if isinstance(call, ast.Call) else None


def is_method_of_self(called_: ast.expr | None) -> bool:
    return called_ is not None and ast.unparse(called_).startswith("self.")


def changes_state(statement: ast.stmt, loggers: set[str]) -> bool:
    """Say whether a statement calls something for its effect, or sets more than a local name."""
    if isinstance(statement, ast.Expr):
        func = called(statement.value)
        logs = isinstance(func, ast.Attribute) and ast.unparse(func.value) in loggers
        return func is not None and not logs
    if isinstance(statement, ast.Delete):
        return True
    targets: list[ast.expr] = []
    value: ast.expr | None = None
    if isinstance(statement, ast.Assign):
        targets, value = statement.targets, statement.value
    elif isinstance(statement, ast.AugAssign | ast.AnnAssign):
        targets, value = [statement.target], statement.value
    # A function's result is often the text of an error; a method may undo, and return how it went.
    return is_method_of_self(called(value)) or any(
        isinstance(one, ast.Attribute | ast.Subscript)
        for target in targets
        for one in (target.elts if isinstance(target, ast.Tuple) else [target])
    )


def restores(handler: ast.ExceptHandler, loggers: set[str]) -> bool:
    """Return whether a handler changes state and raises an exception: the same or another."""
    only_raises = len(handler.body) == 1 and isinstance(handler.body[0], ast.Raise)
    if ends_with_raise(handler.body) and not only_raises:
        return True
    inside = list(statements(handler.body))
    raises = any(isinstance(one, ast.Raise) and one.exc is not None for one in inside)
    return raises and any(changes_state(one, loggers) for one in inside)


def catches_all(handler: ast.ExceptHandler) -> bool:
    return handler.type is None or ast.unparse(handler.type) == "BaseException"


def narrow_restores(text: str, tree: ast.Module | None = None) -> Iterator[tuple[int, str]]:
    """Yield line and exceptions of handlers that restore, and catch few.

    Args:
        text: Text of a module.
        tree: Its tree, if it is known.
    """
    if "except" not in text:
        return
    lines = text.splitlines()
    tree = tree or ast.parse(text)
    loggers = loggers_of(tree)
    for node in nodes_of(tree):
        if not isinstance(node, ast.Try | ast.TryStar):
            continue
        # With a handler beside it that restores after the others, this one only translates, too.
        is_restored = any(
            catches_all(one) and any(changes_state(part, loggers) for part in statements(one.body))
            for one in node.handlers
        )
        for handler in node.handlers:
            if handler.type is None or catches_all(handler) or is_restored:
                continue
            if restores(handler, loggers) and not NARROW.search(lines[handler.lineno - 1]):
                yield handler.lineno, ast.unparse(handler.type)


def test_what_restores_state_and_raises_again_does_so_for_every_exception() -> None:
    """A MemoryError or "can't start new thread" passes by `except PenstockError: undo; raise`."""
    found = [
        f"{path.relative_to(ROOT)}:{line}: except {caught}"
        for path in SOURCES
        for line, caught in narrow_restores(path.read_text(), _trees().get(path))
    ]
    assert not found, "catch BaseException, or say `# narrow: why`:\n" + "\n".join(found)


def test_the_rule_of_restores_finds_what_it_is_for() -> None:
    text = """
try:
    work()
except PenstockError:
    undo()
    raise
except OSError:  # narrow: translates
    translate()
    raise
except KeyError:
    raise
except ValueError:
    with suppress(OSError):
        undo()
        raise
try:
    work()
except BaseException:
    undo()
    raise
try:
    work()
except OSError as error:
    file.close()
    raise Unavailable(str(error)) from error
try:
    work()
except OSError as error:
    reason = str(error)
    logger.warning("it failed: %s", reason)
    raise Unavailable(reason) from error
except ValueError:
    if known:
        self.count -= 1
        raise Conflict("again") from None
try:
    work()
except OSError as error:
    file.close()
    raise Unavailable(str(error)) from error
except BaseException:
    file.close()
    raise
"""
    assert list(narrow_restores(text)) == [
        *((4, "PenstockError"), (12, "ValueError")),
        *((23, "OSError"), (32, "ValueError")),
    ]


UNDOES = "except OSError:\n    undo()\n    raise Conflict('x')\n"


@pytest.mark.parametrize(
    ("handlers", "found"),
    [
        ("except* OSError:\n    undo()\n    raise", True),
        ("except OSError:\n    ok = self.undo()\n    raise Conflict('x')", True),
        ("except OSError:\n    ok = await self.undo()\n    raise Conflict('x')", True),
        ("except OSError as error:\n    text = str(error)\n    raise Conflict(text)", False),
        ("except OSError:\n    self._log.truncate()\n    raise Conflict('x')", True),
        ("except OSError:\n    log.truncate()\n    raise Conflict('x')", True),
        ("except OSError:\n    _log.warning('x')\n    raise Conflict('x')", False),
        ("except OSError:\n    logger.warning('x')\n    raise Conflict('x')", False),
        (f"{UNDOES}except BaseException:\n    raise", True),
        (f"{UNDOES}except BaseException:\n    logger.warning('x')\n    raise", True),
        (f"{UNDOES}except BaseException:\n    undo()\n    raise", False),
        (f"{UNDOES}except:\n    undo()", False),
    ],
)
def test_the_rule_of_restores_knows_its_cases(handlers: str, found: bool) -> None:
    lines = f"try:\n    work()\n{handlers}".splitlines()
    body = "\n".join(f"    {line}" for line in lines)
    text = f"_log = logging.getLogger(__name__)\nasync def f(self):\n{body}"
    assert [line for line, _ in narrow_restores(text)] == ([5] if found else [])
