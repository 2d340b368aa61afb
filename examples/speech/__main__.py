"""So that `python -m examples.speech` runs main."""

from .main import main

main()
