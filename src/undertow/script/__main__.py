"""`python -m undertow.script SCRIPT ARGS`, or this file: what `undertow run` starts in every worker."""

import sys

if __name__ == "__main__":
    # The current folder or the folder of this file: neither may shadow modules that undertow imports.
    if not sys.flags.safe_path:
        del sys.path[0]
    known = set(sys.modules)
    sys.path.append(__file__.removesuffix("/undertow/script/__main__.py"))  # for an undertow that is not installed
    from undertow.script.runner import run

    sys.path.pop()
    run(sys.argv[1:], known)
