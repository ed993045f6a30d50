"""What recordings say, put together for people: summaries and excerpts. Pure functions of values."""
