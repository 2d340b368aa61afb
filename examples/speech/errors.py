"""What is wrong with what came from outside, said to whoever can mend it."""


class SpeechError(Exception):
    """Expected and came, and what to do: a line for the terminal, not a traceback."""
