"""A script sees the same paths, names, encoding and modules as with Python itself."""

from __future__ import annotations

import py_compile
import zipfile
from pathlib import Path

import pytest

import undertow
from tests.support.natively import SECOND, Case, check_same, run_ours

SHOW = '''
"""The script's own words."""
import sys
number: int = 1
seen = dict(globals())
print([*seen], {name: thing for name, thing in seen.items() if name != "seen"})
print(sys.argv, sys.path[0], __name__)
import __main__
print(vars(__main__) is globals())
'''
FAIL = SHOW + "\ndef fail():\n    1 / 0\n\nfail()\n"


def make_archive(folder: Path) -> None:
    with zipfile.ZipFile(folder / "app.zip", "w") as archive:
        archive.writestr("__main__.py", SHOW + "import part\n")
        archive.writestr("part.py", "raise ValueError('in an archive')")


def compile_to(name: str) -> object:
    return lambda folder: py_compile.compile(str(folder / "script.py"), str(folder / name))


PLACES = {
    "a file": Case(script=SHOW, words=("script.py", "a b", "-m", "--x")),
    "with a dot": Case(script=SHOW, words=("./script.py",)),
    "above": Case(script=SHOW, files={"in/x": ""}, start_in="in", words=("../script.py",)),
    "below": Case(files={"in/main.py": SHOW + "import near", "in/near.py": ""}, words=("in/main.py",)),
    "by a roundabout way": Case(files={"in/main.py": SHOW}, words=("in//../in/main.py",)),
    "by its full path": Case(script=SHOW, words=("FOLDER/script.py",)),
    "by a link": Case(
        files={"in/main.py": SHOW + "import near", "in/near.py": ""},
        words=("link.py",),
        arrange=lambda folder: (folder / "link.py").symlink_to("in/main.py"),
    ),
    "without a folder in the path": Case(script=SHOW, environment={"PYTHONSAFEPATH": "1"}),
    "a folder": Case(files={"app/__main__.py": SHOW}, words=("app", "x")),
    "a folder without a script": Case(files={"app/x.py": SHOW}, words=("app",), code=1),
    "an archive": Case(words=("app.zip", "x"), arrange=make_archive, code=1),
    "an archive above": Case(files={"in/x": ""}, start_in="in", words=("../app.zip",), arrange=make_archive, code=1),
    "compiled": Case(script=FAIL, words=("script.pyc",), arrange=compile_to("script.pyc"), code=1),
    "compiled, by another name": Case(script=SHOW, words=("compiled",), arrange=compile_to("compiled")),
    "compiled by another Python": Case(files={"old.pyc": b"1234567890123456789"}, words=("old.pyc",), code=1),
    "a module": Case(script=FAIL, words=("-m", "script", "x"), code=1),
    "a module, without a folder in the path": Case(
        script=SHOW, words=("-m", "script"), environment={"PYTHONSAFEPATH": "1"}, code=1
    ),
    "a package": Case(
        files={
            "pack/__init__.py": "import sys; print(sys.argv)",
            "pack/__main__.py": "from . import x\n" + SHOW,
            "pack/x.py": "",
        },
        words=("-m", "pack", "x"),
    ),
    "a module of a package": Case(
        files={"pack/__init__.py": "", "pack/part.py": FAIL}, words=("-m", "pack.part", "x"), code=1
    ),
    "a package without a script": Case(files={"pack/__init__.py": ""}, words=("-m", "pack"), code=1),
    "a package that fails": Case(
        files={"pack/__init__.py": "1/0", "pack/part.py": ""}, words=("-m", "pack.part"), code=1
    ),
    "a module that is not there": Case(words=("-m", "nothing_there"), code=1),
    "a file that is not there": Case(words=("nothing.py",), code=2),
}


@pytest.mark.parametrize("name", PLACES)
def test_where_a_script_is_and_what_it_finds_there(name: str, tmp_path: Path) -> None:
    check_same(PLACES[name], tmp_path)


@pytest.mark.parametrize("words", [("script.py",), ("app",), ("app.zip",), ("script.pyc",), ("-m", "script")], ids=str)
def test_none_of_them_is_left_to_python_alone(words: tuple[str, ...], tmp_path: Path) -> None:
    def arrange(folder: Path) -> None:
        py_compile.compile(str(folder / "script.py"), str(folder / "script.pyc"))
        with zipfile.ZipFile(folder / "app.zip", "w") as archive:
            archive.writestr("__main__.py", script)

    script = "import sys\nprint('undertow.script.preparation' in sys.modules)\n"
    case = Case(script=script, files={"app/__main__.py": script}, words=words, arrange=arrange)
    assert run_ours(case, tmp_path).out == "True\n"


TEXTS = {
    "empty": Case(),
    "no end of line": Case(script="1/0", code=1),
    "another encoding": Case(script=b"# coding: latin-1\nprint(ascii('\xe9'))\nraise ValueError('\xe9')", code=1),
    "an encoding in the second line": Case(script=b"#!/usr/bin/python\n# coding: latin-1\nprint(ascii('\xe9'))\n"),
    "a byte order mark": Case(script=b"\xef\xbb\xbfprint('x')\nraise ValueError", code=1),
    "a mark and another encoding": Case(script=b"\xef\xbb\xbf# coding: latin-1\n", code=1),
    "an unknown encoding": Case(script="# coding: nonsense\n", code=1),
    "not in its encoding": Case(script=b"print('x')\nprint('\xff')\n", code=1),
    "not in its encoding, in a comment": Case(script=b"print('x')\n# \xff\n", code=1),
    "zero bytes": Case(script=b"print('x')\nprint('\x00')\n", code=1),
    "ends of lines from Windows": Case(script=b"print('x')\r\nprint(ascii('''a\r\nb'''))\r\n1/0\r\n", code=1),
    "a syntax error": Case(script="print('x')\nfor x in y z:\n    pass\n", code=1),
    "a syntax error that the compiler finds": Case(script="def f():\n    x = 1\n    global x\n", code=1),
    "tabs and spaces": Case(script="if 1:\n        a = 1\n\tb = 1\n", code=1),
    "a syntax error in a module": Case(script="import part", files={"part.py": "def f(:\n    pass"}, code=1),
    "a warning of the compiler": Case(script="x = 1\nprint(x is 1)\n"),
    "a warning of the compiler as an error": Case(
        script="x = 1\nprint(x is 1)\n", environment={"PYTHONWARNINGS": "error"}, code=1
    ),
    # Ours begin with `from __future__ import annotations`, which `compile` would hand on.
    "without our future": Case(script="def f(x: 1 + 1): pass\nprint(f.__annotations__)\n"),
    "what it can see of itself": Case(
        script="""
        import inspect, pickle, sys

        class Thing:
            '''Something.'''

        print(inspect.getsource(Thing), inspect.getfile(Thing), inspect.getmodule(Thing))
        print(inspect.getsource(sys.modules["__main__"]) == __loader__.get_source("__main__"), __loader__.path)
        print(pickle.dumps(Thing()), type(pickle.loads(pickle.dumps(Thing()))) is Thing)
        """
    ),
    "deleted while it runs": Case(script="import os\nos.unlink(__file__)\n1/0\n", code=1),
    "in another folder later": Case(
        script="import os\nos.chdir('in')\nimport part\nprint(part.__file__)\n1/0\n",
        files={"in/x": "", "part.py": ""},
        code=1,
    ),
    "in a folder that is gone": Case(script="import os\nos.mkdir('e')\nos.chdir('e')\nos.rmdir('../e')\n1/0\n", code=1),
    "reads what is typed": Case(script="import sys\nprint(input('? '), sys.stdin.read())", typed=b"a\nb\nc"),
    "arguments that are not understood": Case(
        script="import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--lr', type=float)\n"
        "parser.parse_args()\n",
        words=("script.py", "--lr", "much"),
        code=2,
    ),
    "help": Case(
        script="import argparse\nparser = argparse.ArgumentParser()\nparser.parse_args()\n", words=("script.py", "-h")
    ),
    "help of a module": Case(
        files={"pack/__main__.py": "import argparse\nargparse.ArgumentParser().parse_args()\n"},
        words=("-m", "pack", "--help"),
    ),
}


@pytest.mark.parametrize("name", TEXTS)
def test_what_a_script_is_made_of(name: str, tmp_path: Path) -> None:
    check_same(TEXTS[name], tmp_path)


WHOSE = "print(__name__)\nif __name__ == '__main__':\n    import {0}\n    print({0}.__file__)\n"


@pytest.mark.parametrize("name", ["random", "enum", "types", "select", "runpy", "script", "settings", "torch"])
def test_a_script_may_be_named_as_a_module_of_pythons_or_ours(name: str, tmp_path: Path) -> None:
    check_same(Case(files={f"{name}.py": WHOSE.format(name)}, words=(f"{name}.py",)), tmp_path)


@pytest.mark.parametrize("name", ["random", "enum", "dataclasses", "json", "numpy", "torch"])
def test_a_module_beside_the_script_is_the_scripts(name: str, tmp_path: Path) -> None:
    # On the second rank: on a single one there would be no reason to look at numpy at all.
    case = Case(script=f"import {name}\nprint({name}.own)", files={f"{name}.py": "own = 'yes'"}, environment=SECOND)
    assert check_same(case, tmp_path).out == "yes\n"


@pytest.mark.parametrize("name", ["random", "enum", "dataclasses", "msgspec", "undertow"])
def test_a_module_where_the_job_is_started_is_nobodys(name: str, tmp_path: Path) -> None:
    files = {f"{name}.py": "own = 'yes'", "in/main.py": "import random, enum, dataclasses\nprint(random.__file__)"}
    check_same(Case(files=files, words=("in/main.py",)), tmp_path)


@pytest.mark.parametrize("runner", [("-m", "undertow.script"), ("-W", "error", "-m", "undertow"), ("-mundertow",)])
def test_other_launchers_start_it_by_name(runner: tuple[str, ...], tmp_path: Path) -> None:
    path = {"PYTHONPATH": str(Path(undertow.__file__).parents[1])}
    for number, words in enumerate([("./script.py", "run"), ("-m", "script", "run"), ("./wrong.py",)]):
        (tmp_path / str(number)).mkdir()
        case = Case(script=FAIL, files={"wrong.py": "(", "msgspec.py": "1 / 0"}, words=words, environment=path, code=1)
        check_same(case, tmp_path / str(number), runner)
