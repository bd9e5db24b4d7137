"""The doctor: checks whether training would work on these hosts, and says what to do if not.

Modules that do I/O collect facts (`collect`, `netlink`, `probe_server`, `link_measurement`), pure functions
judge them (`machine`, `interfaces`, `variables`, `cluster`), and `view` shows the findings.
Never imports torch or numpy: either may be what is broken.
"""
