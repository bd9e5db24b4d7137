"""`python -m undertow.script SCRIPT ARGS`, or this file in place of -m: what `undertow run` starts in every worker."""

import sys

if __name__ == "__main__":
    # Where we were started, or where this file is: neither may hide modules from us.
    if not sys.flags.safe_path:
        del sys.path[0]
    known = set(sys.modules)
    sys.path.append(__file__.removesuffix("/undertow/script/__main__.py"))  # of use where nobody has installed us
    from undertow.script.runner import run

    sys.path.pop()
    run(sys.argv[1:], known)
