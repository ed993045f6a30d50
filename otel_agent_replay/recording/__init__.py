"""Values only: what a recording is made of, and how it is written."""
