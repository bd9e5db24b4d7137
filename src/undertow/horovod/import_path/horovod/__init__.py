"""`horovod` for processes that inherit `sys.path` and nothing else: workers that multiprocessing spawns.

In: the first import of `horovod` there.  Out: our own modules in its place, as in the process that started them.
"""

import sys

import undertow.horovod

sys.modules[__name__] = undertow.horovod
undertow.horovod.install()
