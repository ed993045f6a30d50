"""Finds what a recording of a program cannot give back, and says what to do about it."""
