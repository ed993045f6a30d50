"""Frames of the spool go to an OTLP receiver, at least once, and are removed when it has acknowledged them.

A process of its own ships, one for each home and destination, so that a program that is recorded gets no thread, no
client and no import of one: it forks, exits and is killed as it would without us. `custody` is what stands in the
recorded process, `worker` is the process that ships.
"""
