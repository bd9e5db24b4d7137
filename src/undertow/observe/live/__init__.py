"""Live view of a running job: workers send reports, the launcher shows them on a terminal and a page."""
