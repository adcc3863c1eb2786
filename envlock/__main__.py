"""`python -m envlock` is the command line."""

from envlock.cli import main

main()
