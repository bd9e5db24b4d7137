"""What there is once per process: its engine thread, groups, recording and turns."""
