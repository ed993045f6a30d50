"""Record and replay: the two sessions, matching, readings, expectations, the report."""
