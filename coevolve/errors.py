"""Errors that are the user's to mend: one clear sentence, shown without a traceback."""


class UserError(Exception):
    """Bad input. The message is one sentence that names the file, the key and the fix."""
