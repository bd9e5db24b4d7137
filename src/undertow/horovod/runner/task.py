"""The program of each worker of `horovod.run`: `python -m undertow.horovod.runner.task FOLDER`.

In: the folder with the function.  Out: a file with the result, or with the exception, which the worker then raises.
"""

from __future__ import annotations

import sys

from undertow.horovod.runner.exchange_folder import ExchangeFolder
from undertow.settings import read_settings


def main(folder: str) -> None:
    exchange, rank = ExchangeFolder(folder), read_settings().rank
    exchange.note_start(rank)
    try:
        func, args, kwargs = exchange.get_task()
        exchange.put_result(rank, func(*args, **kwargs))
    except BaseException as error:
        exchange.put_failure(rank, error)
        raise


if __name__ == "__main__":
    main(sys.argv[1])
