"""State of the process: its engine thread, groups, recording and turns."""
