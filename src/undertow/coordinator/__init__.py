"""The coordinator's side of the job: how workers find each other."""
