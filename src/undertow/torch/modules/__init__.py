"""Forward hooks of modules, and classes that are mixed into objects of users."""
