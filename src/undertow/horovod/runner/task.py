"""What each worker of `horovod.run` runs: `python -m undertow.horovod.runner.task FOLDER`.

In: the folder with the function.  Out: a file with its result, or with its exception; then the worker fails with it.
"""

from __future__ import annotations

import sys

from undertow.horovod.runner.box import Box
from undertow.settings import read_settings


def main(folder: str) -> None:
    box, rank = Box(folder), read_settings().rank
    box.note_start(rank)
    try:
        func, args, kwargs = box.get_task()
        box.put_result(rank, func(*args, **kwargs))
    except BaseException as error:
        box.put_failure(rank, error)
        raise


if __name__ == "__main__":
    main(sys.argv[1])
