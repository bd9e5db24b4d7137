"""The release of undertow that this is."""

__version__ = "0.1.0"
