"""The gradients of a torch module, for `undertow.sync`: memory, copies from and to devices, collectives."""
