"""Ends a process in which the replay could not be set up. Imports nothing that could be missing."""

import os
import sys

CANNOT_JUDGE = 125


def refuse(error):
    """Say why in one sentence, and end at once."""
    if isinstance(error, ImportError):
        message = (
            f"{sys.executable} cannot import otel_agent_replay ({error}); run the replay with a Python that has it."
        )
    else:
        message = str(error) or type(error).__name__
    sys.stderr.write(f"agent-replay: {message}\n")
    sys.stderr.flush()
    os._exit(getattr(error, "exit_code", CANNOT_JUDGE))
