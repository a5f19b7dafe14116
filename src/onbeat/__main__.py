"""`python -m onbeat` is `onbeat`."""

from onbeat.cli.command import main

main()
