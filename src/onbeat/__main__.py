"""`python -m onbeat` is `onbeat`."""

from onbeat.cli import main

main()
