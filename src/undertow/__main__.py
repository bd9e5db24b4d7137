"""`python -m undertow`: the command `undertow` or, if a script follows, a run of that script as one worker.

The latter is for other launchers: `torchrun --nproc-per-node 4 -m undertow train.py`.
"""

import os
import sys

if __name__ == "__main__":
    arguments = sys.argv[1:]
    # A command is one word: `run` is the command, `./run` a script.
    if arguments[:1] == ["-m"] or (arguments and not arguments[0].isidentifier() and os.path.exists(arguments[0])):
        known = set(sys.modules)
        if not sys.flags.safe_path:
            del sys.path[0]  # the current folder, which must not shadow modules that undertow imports
        from undertow.script.runner import run

        run(arguments, known)
    else:
        from undertow.cli import main

        main()
