"""Under torchrun, and wherever else somebody sets RANK: `UNDERTOW_AUTOLOAD=1 torchrun train.py`.

In: torch has just been imported (it calls `load`, an entry point of ours).  Out: the process is prepared as
`undertow run` would have prepared it, if the variable asks for that and this is a worker.
Every process that imports torch comes here: nothing is imported, and nothing done, without the variable.
"""

from __future__ import annotations

import os


def load() -> None:
    """Called by torch, last of all when it is imported."""
    if "UNDERTOW_AUTOLOAD" not in os.environ or "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return
    import multiprocessing
    import sys

    from undertow.settings import read_settings

    if multiprocessing.parent_process() is not None or not read_settings().autoload:
        return

    from undertow.script.preparation import prepare, speak_up

    prepare(getattr(sys.modules.get("__main__"), "__file__", None))
    shows = sys.excepthook

    def show(*failure: object) -> None:
        speak_up()
        shows(*failure)  # type: ignore[arg-type]

    sys.excepthook = show
