"""`python -m coevolve` is `coevolve`."""

from coevolve.cli import main

if __name__ == "__main__":
    main()
