"""`python -m linnet` is the `linnet` command."""

from linnet.cli.app import main

main()
