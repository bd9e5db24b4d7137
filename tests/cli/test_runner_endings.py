"""A script ends as with Python itself: exit code, traceback with only its own frames, final actions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.natively import SECOND, Case, check_same

FAILURES = {
    "in a function": Case(script="def f():\n    1 / 0\n\nf()\n"),
    "in a module, called": Case(script="import part\npart.f()", files={"part.py": "def f():\n    raise ValueError"}),
    "in a module, imported": Case(script="import part", files={"part.py": "1 / 0"}),
    "because of another": Case(
        script="""
        def f():
            1 / 0

        try:
            f()
        except ZeroDivisionError as error:
            raise KeyError(2) from error
        """
    ),
    "while another is handled": Case(
        script="""
        try:
            1 / 0
        finally:
            {}["x"]
        """
    ),
    "several at once": Case(
        script="""
        try:
            1 / 0
        except ZeroDivisionError as error:
            raise ExceptionGroup("two", [error, ValueError(2)])
        """
    ),
    "with a note": Case(script="error = ValueError(2)\nerror.add_note('see')\nraise error"),
    "an exception of the script's own": Case(script="class Odd(BaseException):\n    pass\n\nraise Odd('x')"),
    "an assertion": Case(script="assert 1 == 2, 'no'"),
    "a warning as an error": Case(
        script="import warnings\nwarnings.warn('x')", environment={"PYTHONWARNINGS": "error"}
    ),
    "shown by the script": Case(
        script="""
        import sys, traceback

        def show(kind, error, trace):
            print(kind, error, error.__traceback__ is trace)
            traceback.print_tb(trace)

        sys.excepthook = show
        1 / 0
        """
    ),
    "shown by the script, which fails": Case(
        script="""
        import sys

        def show(*failure):
            {}["x"]

        sys.excepthook = show
        1 / 0
        """
    ),
    "a syntax error shown by the script, which fails": Case(
        script="import sys\nsys.excepthook = lambda *failure: {}['x']\nimport part", files={"part.py": "def f(:"}
    ),
    "shown by nobody": Case(script="import sys\ndel sys.excepthook\n1 / 0"),
    "shown by nothing": Case(script="import sys\nsys.excepthook = None\n1 / 0"),
    "not shown": Case(script="import sys\nsys.stderr = None\n1 / 0"),
    "and what is found of it afterwards": Case(
        script="""
        import atexit, sys, traceback

        def look():
            print(sys.last_type, sys.last_value, sys.excepthook)
            traceback.print_tb(sys.last_traceback)

        atexit.register(look)
        1 / 0
        """
    ),
    "and a thread goes on": Case(
        script="""
        import threading

        def work():
            threading.main_thread().join()
            print("late")

        threading.Thread(target=work).start()
        1 / 0
        """
    ),
}


# The second of two ranks holds its output back until the end, including this.
@pytest.mark.parametrize("environment", [{}, SECOND], ids=["alone", "second"])
@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_shows_the_scripts_frames_only(name: str, environment: dict[str, str], tmp_path: Path) -> None:
    case = FAILURES[name]
    case = Case(script=case.script, files=case.files, environment={**case.environment, **environment}, code=1)
    check_same(case, tmp_path)


EXITS = {
    "": 0,
    "0": 0,
    "3": 3,
    "'message'": 1,
    "None": 0,
    "1 << 40": 0,
    "1 << 100": 255,
    "-1": 255,
    "(1, 2)": 1,
    "256": 0,
    "1.5": 1,
}


@pytest.mark.parametrize("argument", EXITS)
def test_an_exit_code_is_the_scripts(argument: str, tmp_path: Path) -> None:
    script = f"import atexit, sys\natexit.register(print, 'bye')\nprint('x')\nsys.exit({argument})"
    check_same(Case(script=script, code=EXITS[argument]), tmp_path)


ENDINGS = {
    "exit()": Case(script="exit(4)", code=4),
    "exit in a function that shows failures": Case(
        script="import sys\nsys.excepthook = lambda *failure: sys.exit(7)\n1 / 0", code=7
    ),
    "os._exit": Case(script="import atexit, os\natexit.register(print, 'bye')\nos._exit(5)", code=5),
    "interrupted": Case(script="import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nsignal.pause()", code=-2),
    "interrupted, shown by the script": Case(
        script="import atexit, sys\natexit.register(print, 'bye')\nsys.excepthook = lambda *failure: print(failure)\n"
        "raise KeyboardInterrupt",
        code=-2,
    ),
    "killed": Case(script="import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\nsignal.pause()", code=-15),
    "what is registered for the end, in order": Case(
        script="""
        import atexit, threading

        for number in range(3):
            atexit.register(print, number)

        def work():
            threading.main_thread().join()
            print("before those")

        threading.Thread(target=work).start()
        print("end")
        """
    ),
    "a failure at the very end": Case(script="import atexit\n\n@atexit.register\ndef f():\n    1 / 0\n"),
    "a failure in a thread": Case(
        script="import threading\nthread = threading.Thread(target=lambda: 1 / 0, name='T')\nthread.start()\n"
        "thread.join()\nprint('end')"
    ),
    "what is left is deleted": Case(
        script="""
        class Thing:
            def __init__(self, name):
                self.name = name
            def __del__(self):
                print("gone", self.name)

        first, second = Thing(1), Thing(2)
        """
    ),
    "warnings": Case(
        script="import warnings\nwarnings.warn('x')\n\ndef f():\n    warnings.warn('y', stacklevel=2)\n\nf()\n"
        "warnings.warn('z', DeprecationWarning)\n"
    ),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_a_script_ends_as_it_ends_with_python(name: str, tmp_path: Path) -> None:
    check_same(ENDINGS[name], tmp_path)
