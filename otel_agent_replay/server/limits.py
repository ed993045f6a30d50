"""Every bound of the server, in one place: what one client may cost all others."""

from __future__ import annotations

BODY_BYTES = 32 << 20
"""Bytes of one OTLP request over HTTP, decompressed. Default receivers take 4 MiB (gRPC) and 20 MiB (HTTP)."""

GRPC_BYTES = 16 << 20
"""Bytes of one OTLP call over gRPC, decompressed …"""

GRPC_CALLS = 12
"""… and calls that are held at once, whole; a client beyond that is told to come again."""

HELD_BYTES = 96 << 20
"""Bytes of OTLP requests over HTTP that are held at once; a client beyond that is told to come again."""

DECODED = 1
"""OTLP requests that are decoded at once: one takes several times its size meanwhile, and one core at most."""

QUEUED_BYTES = 64 << 20
"""Bytes of rows that wait to be inserted; a request that would go beyond is told to come again."""

GROUP_BYTES = 16 << 20
"""Bytes of rows that are inserted at a time; one request may be larger by itself."""

ATTRIBUTES = 1024
"""Attributes of a span, a resource, an event or a link. SDKs allow 128 unless told otherwise."""

EVENTS = 4096
"""Events of a span, and links of a span."""

NAME_BYTES = 64 << 10
"""Bytes of a span's name, of a status message, and of every other text that is no attribute's value."""

KEY_BYTES = 4096
"""Bytes of an attribute's name."""

DEPTH = 32
"""Levels of lists and maps in an attribute's value."""

CONNECTIONS = 128
"""HTTP connections that are open at once, on each port."""

IDLE_SECONDS = 60.0
"""Seconds that an HTTP connection may stand still."""

BODY_SECONDS = 600
"""Seconds in which a request has to have been sent."""

SQL_BODY_BYTES = 512 << 20
"""Bytes of one INSERT over HTTP, as it comes; it is streamed, so this bounds work and not memory."""

SQL_TEXT_BYTES = 1 << 20
"""Bytes of one statement."""

QUERIES = 16
"""Statements that run at once …"""

QUERY_WAIT_SECONDS = 20.0
"""… and seconds that another waits for its turn before it is refused."""

QUERY_SECONDS = 120
"""Seconds that one statement may run."""

RESULT_SECONDS = 600
"""Seconds in which a client has to have read a result."""

QUERY_BYTES = 600 << 20
"""Bytes of memory that one statement may take."""

RESULT_BYTES = 2 << 30
"""Bytes of one result; it is streamed, so this bounds work and not memory."""

SERVER_BYTES = 1200 << 20
"""Bytes of memory that the engine may take, the process around it counted too."""

SESSIONS = 256
"""Sessions that are remembered; the one that was used least recently is forgotten first."""

STOP_SECONDS = 20.0
"""Seconds that a stop waits for what has begun."""
