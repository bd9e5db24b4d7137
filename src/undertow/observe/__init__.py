"""Observation of jobs: trace files, status reports, the live view, timelines and reports."""
