"""``python -m tunesmith`` is the command ``tunesmith``."""

from tunesmith.cli import main

main()
