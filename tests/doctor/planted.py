"""A program with eight leaks; a comment says which stands in a line."""

import ctypes
import os
import socket
import sys
import threading

import otel_agent_replay as replay


@replay.boundary("model", "ask")
def ask(prompt: str) -> str:
    return f"{len(prompt)} characters"


class Tool:
    def __init__(self, name: str) -> None:
        self.name = name


class Knot:
    """Garbage that only the collector finds."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.itself = self

    def __del__(self) -> None:
        gone.append(self.number)  # leak: garbage-collection


gone: list[int] = []
raced: list[int] = []
ready = threading.Barrier(3)


def race(number: int) -> None:
    ready.wait()
    for step in range(30_000):
        if step % 100 == 0:
            raced.append(number)  # leak: threads


tools = {Tool(name) for name in "abcdefgh"}
names = [tool.name for tool in tools]  # leak: set-order
print(ask(" ".join(names)))
print(ask(f"use {Tool('hammer')}"))  # leak: address
with open("/dev/urandom", "rb") as device:  # leak: device
    nonce = device.read(8).hex()
print(ask(nonce))
seconds = ctypes.CDLL(None).time  # leak: clock
seconds.restype = ctypes.c_long
print(ask(str(seconds(None))))
try:
    socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=5).close()  # leak: socket
except OSError as error:
    print(type(error).__name__)
threads = [threading.Thread(target=race, args=(number,)) for number in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(ask("".join(map(str, raced))))
for number in range(2_000):
    Knot(number)
print(ask(f"{len(gone)} are gone"))
print(ask(sorted(f"{name}={value}" for name, value in os.environ.items())[0]))  # leak: environment
