"""The coordinator: how workers find each other, and what they agree on."""
