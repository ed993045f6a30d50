"""A crossing is decided here: sessions, lanes, the order of completions, call sites, clocks."""
