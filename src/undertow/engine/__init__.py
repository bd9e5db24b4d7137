"""The parameter server of all workers: protocol, links, rendezvous, and the two sides of the key-value store."""
