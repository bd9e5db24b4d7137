"""Under torchrun, and wherever else somebody sets RANK: `UNDERTOW_AUTOLOAD=1 torchrun train.py`.

In: torch has just been imported (it calls `load`, an entry point of ours).  Out: the process is prepared as
`undertow run` would have prepared it, if the variable asks for that and this is a worker.  Under srun, mpirun and other
launchers whose ranks are not read, the process ends with code 2 if each would train alone.
Every process that imports torch comes here: nothing is imported, and nothing done, without the variable.
"""

from __future__ import annotations

import os


def load() -> None:
    """Called by torch, last of all when it is imported."""
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

    from undertow.script.frames import strip
    from undertow.script.preparation import prepare, speak_up

    prepare(script)
    shows = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: object) -> None:
        speak_up()
        strip(error)
        shows(kind, error, error.__traceback__)

    sys.excepthook = show


def _refuse_others(script: str | None) -> None:
    """End the process under srun or mpirun, whose ranks are not read; torch would wrap an error in its own words."""
    import sys

    from undertow.errors import ConfigError
    from undertow.script.admission import check_launcher

    try:
        check_launcher(script)
    except ConfigError as error:
        print(f"undertow: {error}", file=sys.stderr)
        sys.exit(2)
