"""Runs a script whose gradients torch's own wrapper sums, and ends the process where the interpreter would begin to.

A thread of Gloo's may still hold an object of Python's then.  If it lets go of it while the interpreter ends, torch
aborts the process: once in some dozens of runs on a busy machine, with undertow or without.
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
