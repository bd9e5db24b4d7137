"""Runs a script that uses torch's own wrapper, and ends the process before the interpreter finalises.

A Gloo thread may then still hold a Python object.  If it releases it during finalisation, torch
aborts the process: once in some dozens of runs on a busy machine, with or without undertow.
"""

import atexit
import os
import runpy
import sys

del sys.argv[0]
sys.path[0] = os.path.dirname(os.path.realpath(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
atexit._run_exitfuncs()
sys.stdout.flush()
sys.stderr.flush()
os._exit(0)
