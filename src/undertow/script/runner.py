"""Runs a script as `__main__`, in a process that was prepared for it.

In: the arguments that would follow `python` on a command line: a file, or -m and a module, then the script's arguments.
Out: the effects of the script.  `sys.argv`, `sys.path`, `__main__` and tracebacks are as under Python itself, and the
script's exit code is the process's.  A script that cannot be run is passed to Python, for its error message.
"""

from __future__ import annotations

import os
import pkgutil
import runpy
import sys
import types
from collections.abc import Callable, Collection, Sequence
from importlib.machinery import PathFinder, SourceFileLoader, SourcelessFileLoader
from importlib.util import decode_source
from types import CodeType
from typing import Any, NoReturn

from undertow.errors import ConfigError
from undertow.runtime.launcher_notes import note_loss
from undertow.script.awareness import find_module_file
from undertow.script.preparation import prepare, show_output
from undertow.script.tracebacks import ExceptionHook

USAGE_ERROR = 2


def run(arguments: Sequence[str], known: Collection[str]) -> None:
    """Prepare this process, then run the script in it.  Returns when the script's last line has run.

    `known` names the modules that were imported before undertow.  `sys.path` must not contain the script's folder yet.
    """
    if not arguments or arguments[0] in ("-", "-c") or list(arguments) == ["-m"]:
        _refuse("give a script, or -m and a module")
    is_module = arguments[0] == "-m"
    start = _find_module(arguments[1]) if is_module else _find_file(arguments)
    _forget_shadowed(known)
    sys.argv = ["-m", *arguments[2:]] if is_module else list(arguments)
    ours, sys.modules["__main__"] = sys.modules["__main__"], _make_main()
    try:
        prepare(find_module_file(arguments[1]) if is_module else arguments[0])
    except ConfigError as error:
        _refuse(str(error))
    try:
        start()
    except SystemExit as ending:
        if ending.code is not None and ending.code != 0:
            show_output()
            _explain(ending)
        raise
    except BaseException as error:
        show_output()
        note_loss(error)
        sys.excepthook = ExceptionHook(start)  # replaces any hook of the script, and calls it
        raise
    finally:
        del ours  # kept alive until here, because its functions are running


def _explain(ending: SystemExit) -> None:
    """Report the end of the script: to the launcher if a loss caused it, and to the other workers if there are any."""
    process = sys.modules.get("undertow.runtime.process")
    note_loss(ending, process.find_error() if process is not None else None)
    if process is not None:
        exit_code = ending.code if isinstance(ending.code, int) else 1
        process.blame(f"its script ended with sys.exit({ending.code!r})", exit_code & 0xFF or 1)


def _refuse(reason: str) -> NoReturn:
    print(f"undertow: {reason}", file=sys.stderr)
    sys.exit(USAGE_ERROR)


def _find_module(name: str) -> Callable[[], None]:
    if not sys.flags.safe_path:
        sys.path.insert(0, os.getcwd())
    return lambda: runpy._run_module_as_main(name)  # type: ignore[attr-defined]  # what `python -m` itself calls


def _find_file(arguments: Sequence[str]) -> Callable[[], None]:
    script = arguments[0]
    # Python does not remove ./ and ../ either.
    path = script if os.path.isabs(script) else os.path.join(os.getcwd(), script)
    if pkgutil.get_importer(path) is not None:  # a folder or an archive with a __main__.py
        sys.path.insert(0, path)
        return lambda: runpy._run_module_as_main("__main__", alter_argv=False)  # type: ignore[attr-defined]
    try:
        code, loader = _read_code(path)
    except Exception:
        _hand_over(arguments)
    if not sys.flags.safe_path:
        sys.path.insert(0, os.path.dirname(os.path.realpath(path)))

    def start() -> None:
        main = vars(sys.modules["__main__"])
        main.update(__file__=path, __cached__=None, __loader__=loader)
        exec(code, main)

    return start


def _read_code(path: str) -> tuple[CodeType, Any]:
    with open(path, "rb") as file:
        compiled = pkgutil.read_code(file)
        if compiled is not None:
            return compiled, SourcelessFileLoader("__main__", path)
        if path.endswith(".pyc"):
            raise ImportError(f"{path} was compiled by another Python")
        file.seek(0)
        source = file.read()
    decode_source(source)  # raises if the source, comments included, is not valid in the file's encoding
    return compile(source, path, "exec", dont_inherit=True), SourceFileLoader("__main__", path)


def _hand_over(arguments: Sequence[str]) -> NoReturn:
    """Replace this process by Python itself, which reports why it cannot run the script."""
    flags = sys.orig_argv[1 : len(sys.orig_argv) - len(arguments)]
    del flags[-2 if flags[-2:-1] == ["-m"] else -1 :]  # the arguments that started undertow
    os.execv(sys.executable, [sys.orig_argv[0], *flags, *arguments])


def _forget_shadowed(known: Collection[str]) -> None:
    """Unload modules of Python's library that a file beside the script shadows: the script shall import that file."""
    for name in [name for name in sys.modules if name in sys.stdlib_module_names and name not in known]:
        if PathFinder.find_spec(name, sys.path[:1]) is not None:
            del sys.modules[name]


def _make_main() -> types.ModuleType:
    """Create the module `__main__` as Python does before it knows what to run."""
    main = types.ModuleType("__main__")
    vars(main).update(__annotations__={}, __builtins__=sys.modules["builtins"])
    return main
