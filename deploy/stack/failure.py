"""The one error of this folder."""


class StackFailed(Exception):
    """Why the stack cannot be started or go on, in words for whoever ran it."""
