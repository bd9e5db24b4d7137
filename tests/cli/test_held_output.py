"""Output of the second of two ranks is held back, without any effect on how scripts print."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.natively import SECOND, Case, check_same, run_both

WAYS = {
    "print": "print('a')\nprint('b', end='')\nprint('c', flush=True)",
    "both streams": "import sys\nprint('e', file=sys.stderr)\nprint('o')\nsys.stderr.write('f')",
    "lines": "import sys\nsys.stdout.writelines(['a\\n', 'b\\n'])\nprint(sys.stdout.write('abc'))",
    "bytes": "import sys\nsys.stdout.buffer.write(b'\\xff\\n')\nsys.stdout.buffer.write(memoryview(b'x'))",
    "bytes that change later": "import sys\ndata = bytearray(b'one')\nsys.stdout.buffer.write(data)\ndata[:] = b'two'",
    "no text": "import sys\ntry:\n    sys.stdout.write(5)\nexcept TypeError as error:\n    print(error)",
    "no character": "try:\n    print('\\ud800')\nexcept UnicodeEncodeError as error:\n    print(error)",
    "what the streams are": """
        import io, shutil, sys
        names = "name mode encoding errors newlines line_buffering write_through closed".split()
        for stream in (sys.stdout, sys.stderr):
            print(stream, stream.buffer.name, *(getattr(stream, name) for name in names))
            print(stream.isatty(), stream.fileno(), stream.writable(), stream.readable(), stream.seekable())
            print(type(stream), isinstance(stream.buffer, io.RawIOBase))
        """,
    "another encoding": """
        import sys
        sys.stdout.reconfigure(line_buffering=True, encoding="latin-1", errors="replace")
        print("é €")
        """,
    "wrapped again": "import io, sys\nsys.stdout = io.TextIOWrapper(sys.stdout.buffer, 'utf-16')\nprint('é')",
    "detached": "import io, sys\nsys.stdout = io.TextIOWrapper(sys.stdout.detach(), 'utf-16')\nprint('é')",
    "a copy to a file": """
        import sys
        class Tee:
            def __init__(self, stream):
                self.stream, self.file = stream, open("log", "w")
            def write(self, text):
                self.stream.write(text)
                self.file.write(text)
            def flush(self):
                self.stream.flush()
        sys.stdout = Tee(sys.stdout)
        print("to both")
        sys.stdout.file.close()
        print(open("log").read(), file=sys.stdout.stream)
        """,
    "redirected": """
        import contextlib, io, sys
        with contextlib.redirect_stdout(io.StringIO()) as file:
            print("in")
        with contextlib.redirect_stdout(sys.stderr):
            print("to the other")
        print("out", repr(file.getvalue()))
        """,
    "stacks": "import faulthandler\nfaulthandler.enable()\nprint(faulthandler.is_enabled())",
    "another program": "import subprocess, sys\nsubprocess.run(['echo', 'x'], stdout=sys.stdout, stderr=sys.stderr)",
    "the file itself": "import os\nos.dup2(os.open('log', os.O_CREAT | os.O_WRONLY), 1)\nprint('x')",
    "a progress bar": "import sys\nfor n in range(5):\n    sys.stderr.write(f'\\r{n}/5')\n    sys.stderr.flush()",
    "logging": "import logging\nlogging.basicConfig(level='INFO')\nlogging.info('hello')",
    "warnings": "import warnings\nwarnings.warn('x')",
    "a question": "print(input('? '))",
    "closed": "import sys\nprint('a')\nsys.stdout.close()\ntry:\n    print('b')\nexcept ValueError as e:\n    print(e)",
    "closed by with": "import sys\nwith sys.stdout as stream:\n    stream.write('x')",
    "nothing to print to": "import sys\nsys.stdout = None\nprint('a')\nsys.stderr = None",
    "the end": "import atexit\natexit.register(print, 'bye')\nprint('x')",
    "megabytes": "import sys\nfor n in range(20000):\n    print(n, 'x' * 80)\nsys.stderr.write('e' * 2_000_000)",
    "a forked child": """
        import multiprocessing
        print("parent")
        process = multiprocessing.get_context("fork").Process(target=int)
        process.start()
        process.join()
        print("end", process.exitcode)
        """,
    "a forked child that exits as a script does": """
        import os, sys
        print("parent", flush=True)
        if os.fork() == 0:
            sys.exit(0)
        print(os.wait()[1])
        """,
}


@pytest.mark.parametrize("buffering", [{}, {"PYTHONUNBUFFERED": "1"}], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_print_works_as_ever(way: str, buffering: dict[str, str], tmp_path: Path) -> None:
    environment = {**SECOND, **buffering, "PYTHONUTF8": "1"}
    code = 1 if way == "closed" else 0
    check_same(Case(script=WAYS[way], environment=environment, typed=b"typed\n", code=code), tmp_path)


# Whether the words are out when the process dies in the middle of it: nothing is shown at its end.
DIES = "import os\nprint('said', flush=True)\nos._exit(0)"


@pytest.mark.parametrize(
    ("words", "rank", "is_shown"),
    [
        ("", 1, False),
        ("", 0, True),
        ("name = 'RANK'\n", 1, True),
        ("name = 'torch.distributed'\n", 1, True),
        ("# RANK\n", 1, False),
    ],
)
def test_it_is_held_back_where_a_script_does_not_speak_of_ranks(
    words: str, rank: int, is_shown: bool, tmp_path: Path
) -> None:
    case = Case(script=words + DIES, environment={**SECOND, "RANK": str(rank)})
    _, ours = run_both(case, tmp_path)
    assert ours.out == ("said\n" if is_shown else "")


def test_without_other_ranks_nothing_is_held_back(tmp_path: Path) -> None:
    check_same(Case(script=DIES, environment={**SECOND, "RANK": "0", "WORLD_SIZE": "1"}), tmp_path)
