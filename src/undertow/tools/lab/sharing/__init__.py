"""`undertow share bench`: two jobs on the same emulated hosts, one after the other, together, and taking turns."""
