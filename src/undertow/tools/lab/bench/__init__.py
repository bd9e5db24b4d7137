"""`undertow bench`: one model under several systems that take turns on the same emulated hosts."""
