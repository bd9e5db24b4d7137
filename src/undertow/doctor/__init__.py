"""The doctor: would training work on these hosts, and if not, what is to be done?

Facts are collected by thin shells (`collect`, `netlink`, `torch_child`, `door`, `measuring`), judged by pure
functions (`software`, `machine`, `interfaces`, `variables`, `cluster`), and shown by `view`.
Never imports torch or numpy: either may be what is broken.
"""
