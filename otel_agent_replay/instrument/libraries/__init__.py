"""One library a module: a table of targets, and what is read from its calls."""
