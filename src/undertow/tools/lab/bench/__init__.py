"""`undertow bench`: the same model under several systems, on the same emulated hosts, in turns."""
