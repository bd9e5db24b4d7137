"""Runs a script as `__main__`, in a process that was prepared for it.

In: the words of a command line, as they would follow `python`: a file, or -m and a module, and arguments.
Out: whatever the script does.  It finds `sys.argv`, `sys.path`, `__main__` and its tracebacks as Python itself would
have them, and its exit code is the process's.  What Python cannot run is handed to it, for its own words.
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
from undertow.script.awareness import find_text
from undertow.script.failure import Hook
from undertow.script.preparation import prepare, speak_up

USAGE_ERROR = 2


def run(words: Sequence[str], known: Collection[str]) -> None:
    """Prepare this process, then become the script.  Returns when the script's last line has run.

    `known` are the modules that were there before the first one of ours.  `sys.path` begins with what follows the
    script's folder.
    """
    if not words or words[0] in ("-", "-c") or list(words) == ["-m"]:
        _refuse("give a script, or -m and a module")
    is_module = words[0] == "-m"
    start = _find_module(words[1]) if is_module else _find_file(words)
    _forget_hidden(known)
    sys.argv = ["-m", *words[2:]] if is_module else list(words)
    ours, sys.modules["__main__"] = sys.modules["__main__"], _make_main()
    try:
        prepare(find_text(words[1]) if is_module else words[0])
    except ConfigError as error:
        _refuse(str(error))
    try:
        start()
    except SystemExit as ending:
        if ending.code is not None and ending.code != 0:
            speak_up()
            _tell_peers(f"its script ended with sys.exit({ending.code!r})")
        raise
    except BaseException:
        speak_up()
        sys.excepthook = Hook(start)  # the last word, whoever had it before
        raise
    finally:
        del ours  # until here: its functions are running


def _tell_peers(reason: str) -> None:
    """If there are any by now, they hear it when this process leaves."""
    process = sys.modules.get("undertow.runtime.process")
    if process is not None:
        process.blame(reason)


def _refuse(reason: str) -> NoReturn:
    print(f"undertow: {reason}", file=sys.stderr)
    sys.exit(USAGE_ERROR)


def _find_module(name: str) -> Callable[[], None]:
    if not sys.flags.safe_path:
        sys.path.insert(0, os.getcwd())
    return lambda: runpy._run_module_as_main(name)  # type: ignore[attr-defined]  # what `python -m` itself calls


def _find_file(words: Sequence[str]) -> Callable[[], None]:
    script = words[0]
    path = script if os.path.isabs(script) else os.path.join(os.getcwd(), script)  # Python leaves ./ and ../ in it
    if pkgutil.get_importer(path) is not None:  # a folder or an archive with a __main__.py
        sys.path.insert(0, path)
        return lambda: runpy._run_module_as_main("__main__", alter_argv=False)  # type: ignore[attr-defined]
    try:
        code, loader = _read_code(path)
    except Exception:
        _hand_over(words)
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
            raise ImportError(f"{path} is of another Python")
        file.seek(0)
        source = file.read()
    decode_source(source)  # comments, too, must be what their encoding allows
    return compile(source, path, "exec", dont_inherit=True), SourceFileLoader("__main__", path)


def _hand_over(words: Sequence[str]) -> NoReturn:
    """To Python, in place of this process: it says why it cannot run that."""
    flags = sys.orig_argv[1 : len(sys.orig_argv) - len(words)]
    del flags[-2 if flags[-2:-1] == ["-m"] else -1 :]  # what started us
    os.execv(sys.executable, [sys.orig_argv[0], *flags, *words])


def _forget_hidden(known: Collection[str]) -> None:
    """Modules of Python's that we have imported and a file beside the script hides: the script shall have its own."""
    for name in [name for name in sys.modules if name in sys.stdlib_module_names and name not in known]:
        if PathFinder.find_spec(name, sys.path[:1]) is not None:
            del sys.modules[name]


def _make_main() -> types.ModuleType:
    """As Python has it before it knows what to run."""
    main = types.ModuleType("__main__")
    vars(main).update(__annotations__={}, __builtins__=sys.modules["builtins"])
    return main
