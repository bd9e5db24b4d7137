"""The gradients of a torch module as sync/ needs them: memory, copies from and to devices, collectives."""
