"""The helper thread: runs work in order until it is stopped, even after Python has ended its executors."""

from __future__ import annotations

import subprocess
import sys
import threading
import weakref

from undertow.engine.client.helper import Helper, OpenWork

AT_EXIT = """
import atexit, threading
from undertow.engine.client.helper import Helper

helper, done = Helper(), threading.Event()
helper.start()

def work_at_exit():
    helper.submit(done.set)
    print("done" if done.wait(20) else "not done")

atexit.register(work_at_exit)
"""


def test_work_is_done_in_order_and_before_the_end() -> None:
    helper, done, stopped = Helper(), list[int](), threading.Event()
    for number in range(5):
        helper.submit(lambda number=number: done.append(number))
    helper.submit(stopped.set)
    helper.stop()
    assert stopped.wait(20)
    assert done == [0, 1, 2, 3, 4]


def test_work_is_done_after_the_script_has_ended() -> None:
    run = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True, check=True)
    assert run.stdout == "done\n", run.stderr


def test_what_is_owed_is_counted() -> None:
    open_work = OpenWork()
    assert open_work.is_done
    open_work.begin()
    open_work.begin()
    open_work.end()
    assert not open_work.is_done
    open_work.end()
    assert open_work.is_done


def test_done_work_is_not_held() -> None:
    class Model:
        pass

    helper, done, model = Helper(), threading.Event(), Model()
    gone = weakref.ref(model, lambda ref: done.set())
    helper.submit(lambda model=model: None)
    del model
    assert done.wait(20)
    assert gone() is None
    helper.stop()
