"""Preparation of workers that another launcher starts, such as `UNDERTOW_AUTOLOAD=1 torchrun train.py`.

In: a call of `load`, an entry point of this package, by torch at the end of its import.  Out: a process prepared as by
`undertow run`, if the variable is set and this is a worker.  Under srun, mpirun and other launchers whose ranks
undertow does not read, the process ends with exit code 2 if each process would train alone.
Every process that imports torch runs this; without the variable it imports nothing and does nothing.
"""

from __future__ import annotations

import os


def load() -> None:
    """Prepare this process; torch calls this at the end of its import."""
    if "UNDERTOW_AUTOLOAD" not in os.environ:
        return
    is_worker = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    import multiprocessing
    import sys

    from undertow.settings import read_settings

    if multiprocessing.parent_process() is not None or not read_settings().autoload:
        return
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if not is_worker:
        _refuse_others(script)
        return

    from undertow.script.preparation import prepare, show_output
    from undertow.script.tracebacks import strip_own_frames

    prepare(script)
    shows = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: object) -> None:
        show_output()
        strip_own_frames(error)
        shows(kind, error, error.__traceback__)

    sys.excepthook = show


def _refuse_others(script: str | None) -> None:
    """End the process under srun or mpirun, whose ranks undertow does not read.  Raising would make torch wrap it."""
    import sys

    from undertow.errors import ConfigError
    from undertow.script.launcher_check import check_launcher

    try:
        check_launcher(script)
    except ConfigError as error:
        print(f"undertow: {error}", file=sys.stderr)
        sys.exit(2)
