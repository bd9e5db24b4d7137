"""`python -m undertow` is the command `undertow`; before a script it is what `undertow run` starts in every worker.

The latter is for other launchers: `torchrun --nproc-per-node 4 -m undertow train.py`.
"""

import os
import sys

if __name__ == "__main__":
    words = sys.argv[1:]
    # A command is one word: `run` is the command, `./run` a script.
    if words[:1] == ["-m"] or (words and not words[0].isidentifier() and os.path.exists(words[0])):
        known = set(sys.modules)
        if not sys.flags.safe_path:
            del sys.path[0]  # the folder in which we were started: it may not hide modules from us
        from undertow.script.runner import run

        run(words, known)
    else:
        from undertow.cli import main

        main()
