"""`python -m undertow` is the command `undertow`."""

from undertow.cli import main

if __name__ == "__main__":
    main()
