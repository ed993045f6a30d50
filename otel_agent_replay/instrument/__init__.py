"""The patches: what turns a call of a library into a crossing."""
