"""`undertow run`: starts the workers of a job, watches them, and leaves nothing behind."""
