"""`undertow share bench`: jobs on the same emulated hosts, one after another, together, and taking turns."""
