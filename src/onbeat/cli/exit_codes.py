"""The exit codes of `onbeat`; 0 is success."""

FAILED = 1
USAGE = 2
DIFFERENT = 3  # there are changes to apply, and the caller requested this code
INVALID_DEFINITION = 4
UNAVAILABLE = 69
