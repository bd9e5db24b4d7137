"""The lab: an emulated cluster on one machine, and the models that run in it."""
