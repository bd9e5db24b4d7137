"""`horovod` for processes that inherit only `sys.path`, such as workers that multiprocessing spawns.

In: the first import of `horovod` in such a process.  Out: undertow's modules in its place, as in the parent process.
"""

import sys

import undertow.horovod

sys.modules[__name__] = undertow.horovod
undertow.horovod.install()
