"""Loaded by the interpreter of a replayed program before anything of the program is.

This folder stands first on the PYTHONPATH of such a process, and of no other. If the replay cannot be set
up, the process ends here: it must not run on against the world.
"""

try:
    from otel_agent_replay.assembly.child import start

    start()
except BaseException as error:  # noqa: BLE001 (whatever it is, the program must not go live)
    from otel_agent_replay_refusal import refuse

    refuse(error)
