"""Other processes of tests: how long to wait for them, and that they can be interrupted."""

import signal

PATIENCE = 600.0
"""Seconds: long enough for a machine that is busy with other work."""


def interruptible() -> None:
    """For `preexec_fn`: Ctrl-C reaches the process, also where the tests run in the background of a shell."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
