"""Live view of a running job: workers send reports, and the launcher shows them in a terminal and on a page."""
