"""Slots of torch tensors for `undertow.sync`: memory, copies from and to devices, the first weights."""
