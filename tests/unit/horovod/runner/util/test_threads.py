"""Functions that are called in threads."""

from __future__ import annotations

import queue
import sys
import warnings

import pytest

from undertow.horovod.runner.util.threads import execute_function_multithreaded, in_thread


def test_a_function_is_called_in_many_threads() -> None:
    assert execute_function_multithreaded(divmod, [[7, 2], [9, 3], [1, 1]], max_concurrent_executions=2) == {
        0: (3, 1),
        1: (3, 0),
        2: (1, 0),
    }
    done = queue.SimpleQueue[int]()
    assert execute_function_multithreaded(done.put, [[3]], block_until_all_done=False) is None
    assert done.get(timeout=60) == 3
    assert execute_function_multithreaded(divmod, []) == {}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_calls_in_threads_that_fail_are_counted() -> None:
    with pytest.raises(RuntimeError, match="1 of 3 calls of divmod failed"):
        execute_function_multithreaded(divmod, [[1, 0], [4, 2], [9, 3]])


def test_a_thread_may_fail_silently() -> None:
    found: list[int] = []
    in_thread(found.append, (3,)).join()
    assert found == [3]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        in_thread(sys.intern, args=(3,), silent=True).join()
