"""How a job goes, while it goes: workers send pulses, the launcher shows them on a terminal and a page."""
