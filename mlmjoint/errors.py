"""The one exception raised for bad input: a single line naming the value and the remedy."""


class InputError(ValueError):
    """Something the user gave cannot be used. The command line prints it and exits with code 2."""
