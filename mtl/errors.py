"""The one error that the command line shows as a single line."""


class InputError(Exception):
    """Bad arguments or bad input; the message says what is wrong, where, and how to mend it (exit code 2)."""
