"""`python -m coevolve` is `coevolve`."""

from coevolve.cli import main

main()
