"""Values of libraries that are not ours to import: numpy, pydantic, httpx and httpx2.

A value of theirs exists only where the library is loaded, so writing looks in `sys.modules`. Reading imports
them by these fixed names, where they are installed.
"""

from __future__ import annotations

import importlib
import math
import re
import sys
from base64 import b64decode, b64encode
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from otel_agent_replay.recording.allowed import ref
from otel_agent_replay.recording.building import builtin_base, can_be_built
from otel_agent_replay.recording.opaque import Opaque

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import tzinfo

    from otel_agent_replay.recording.decoder import Decoder
    from otel_agent_replay.recording.encoder import Encoder
    from otel_agent_replay.recording.values import Json

HTTP_LIBRARIES = ("httpx", "httpx2")

MASKED = "[masked]"
"""What stands for a credential in a request or response that is part of a value."""

_SECRET_HEADERS = frozenset(
    {"authorization", "proxy-authorization", "x-api-key", "api-key", "x-goog-api-key", "cookie", "set-cookie"}
)
_SECRET_IN_URL = re.compile(
    r"(?<=//)[^/?#@]+(?=@)|(?<=[?&](?:key|sig)=)[^&#]+|(?<=[?&](?:api_key|api-key)=)[^&#]+", re.I
)

_NUMPY_KINDS = frozenset("biufcSUMm")


def _import(name: str) -> Any:
    try:
        return sys.modules.get(name) or importlib.import_module(name)
    except ImportError:
        return None


def encode(value: Any, encoder: Encoder, depth: int) -> Json:
    """The JSON of a value of these libraries; None where it is none."""
    if _is(value, "numpy", "ndarray"):
        return _encode_array(value, encoder)
    if _is(value, "numpy", "generic"):
        if value.dtype.kind not in _NUMPY_KINDS:
            return encoder.refuse(value, f"its dtype is {value.dtype}")
        return {"$": "npscalar", "t": value.dtype.str, "v": _base64(value.tobytes())}
    if _is(value, "pydantic.main", "BaseModel"):
        return _encode_model(value, encoder, depth)
    for name in HTTP_LIBRARIES:
        if _is(value, name, "Response"):
            return _encode_response(value, name, encoder, depth)
        if _is(value, name, "Request"):
            return _encode_request(value, name)
    return None


def _is(value: Any, module: str, name: str, test: Callable[[Any, type], bool] = isinstance) -> bool:
    """Whether a value is of that class; a library that is not loaded, or half loaded, has made no value."""
    cls = vars(sys.modules[module]).get(name) if module in sys.modules else None
    return isinstance(cls, type) and test(value, cls)


def is_model(value: object) -> bool:
    """Whether a value is a model of pydantic."""
    return _is(type(value), "pydantic.main", "BaseModel", issubclass)


def is_array(value: object) -> bool:
    """Whether a value is an array of numpy."""
    return _is(type(value), "numpy", "ndarray", issubclass)


def encode_zone(zone: tzinfo) -> Json:
    """The JSON of a time zone of these libraries; None where it is none."""
    kind = type(zone)
    if kind.__name__ == "TzInfo" and kind.__module__.partition(".")[0] == "pydantic_core":
        offset = zone.utcoffset(None)
        return {"$": "pydantic_zone", "v": int(offset.total_seconds()) if offset is not None else 0}
    return None


def _base64(data: bytes) -> str:
    return b64encode(data).decode()


def _encode_array(array: Any, encoder: Encoder) -> Json:
    if type(array).__module__ != "numpy" or type(array).__name__ != "ndarray" or array.dtype.kind not in _NUMPY_KINDS:
        return encoder.refuse(array, f"its dtype is {array.dtype}")
    fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    found: dict[str, Json] = {"$": "ndarray", "t": array.dtype.str, "n": list(array.shape)}
    found["v"] = _base64(array.tobytes("F" if fortran else "C"))
    if fortran:
        found["f"] = 1
    return found


def _decode_array(_: Decoder, found: dict[str, Any]) -> Any:
    numpy = _import("numpy")
    if numpy is None:
        return Opaque("numpy:ndarray", f"<array of {found['t']}, shape {found['n']}>")
    dtype = _dtype(numpy, found["t"])
    shape = [int(length) for length in found["n"]]
    data = b64decode(found["v"], validate=True)
    if dtype.itemsize == 0:
        return numpy.zeros(shape, dtype)
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != len(data):
        raise ValueError("an array does not fit its shape")
    flat = numpy.frombuffer(data, dtype)
    return flat.reshape(shape, order="F" if "f" in found else "C").copy(order="K")


def _decode_numpy_scalar(_: Decoder, found: dict[str, Any]) -> Any:
    numpy = _import("numpy")
    if numpy is None:
        return Opaque("numpy:generic", f"<{found['t']}>")
    dtype = _dtype(numpy, found["t"])
    data = b64decode(found["v"], validate=True)
    return numpy.frombuffer(data, dtype)[0] if dtype.itemsize else dtype.type()


def _dtype(numpy: Any, name: object) -> Any:
    dtype = numpy.dtype(name) if isinstance(name, str) else None
    if dtype is None or dtype.kind not in _NUMPY_KINDS:
        raise ValueError(f"the dtype {name!r} is refused")
    return dtype


def _encode_model(model: Any, encoder: Encoder, depth: int) -> Json:
    """What pydantic keeps of a model: its fields, which of them were set, and extra and private attributes."""
    kind = type(model)
    if not can_be_built(kind) or builtin_base(kind) is not object:
        return encoder.refuse(model, "its class does something when an object of it goes away")
    found: dict[str, Json] = {"$": "pydantic", "c": ref(kind), "v": encoder.mapping(vars(model), depth + 1)}
    if model.__pydantic_fields_set__ != set(vars(model)):
        found["set"] = sorted(model.__pydantic_fields_set__)
    if model.__pydantic_extra__ is not None:
        found["x"] = encoder.mapping(model.__pydantic_extra__, depth + 1)
    private = getattr(model, "__pydantic_private__", None)
    if private is not None:
        found["p"] = encoder.mapping(private, depth + 1)
    return found


def _decode_model(decoder: Decoder, found: dict[str, Any]) -> Any:
    cls, fields = decoder.cls(found["c"]), decoder.mapping(found["v"])
    extra = decoder.mapping(found["x"]) if "x" in found else None
    base = getattr(_import("pydantic.main"), "BaseModel", None)
    known = cls is not None and base is not None and issubclass(cls, base)
    if cls is None or not known or not can_be_built(cls) or builtin_base(cls) is not object:
        return {**fields, **(extra or {})}
    model: Any = object.__new__(cls)
    object.__setattr__(model, "__dict__", fields)
    object.__setattr__(model, "__pydantic_fields_set__", {str(name) for name in found.get("set", fields)})
    object.__setattr__(model, "__pydantic_extra__", extra)
    object.__setattr__(model, "__pydantic_private__", decoder.mapping(found["p"]) if "p" in found else None)
    return model


def _decode_pydantic_zone(_: Decoder, found: dict[str, Any]) -> Any:
    core = _import("pydantic_core")
    return core.TzInfo(found["v"]) if core is not None else Opaque("pydantic_core:TzInfo", f"TzInfo({found['v']})")


def _encode_headers(headers: Any) -> Json:
    pairs: list[Json] = []
    for name, value in headers.raw:
        shown = name.decode("latin-1")
        pairs.append([shown, MASKED if shown.lower() in _SECRET_HEADERS else value.decode("latin-1")])
    return pairs


def _encode_request(request: Any, library: str) -> Json:
    found: dict[str, Json] = {"$": "request", "lib": library, "m": request.method}
    found["u"] = _SECRET_IN_URL.sub(MASKED, str(request.url))
    found["h"] = _encode_headers(request.headers)
    if "_content" in vars(request):
        found["b"] = _base64(request.content)
    return found


def _encode_response(response: Any, library: str, encoder: Encoder, depth: int) -> Json:
    state = vars(response)
    found: dict[str, Json] = {"$": "response", "lib": library, "s": response.status_code}
    found["h"] = _encode_headers(response.headers)
    if "_content" in state:
        found["b"] = _base64(response.content)
    if state.get("_request") is not None:
        found["q"] = _encode_request(state["_request"], library)
    found["x"] = {
        name: value.decode("latin-1")
        for name in ("http_version", "reason_phrase")
        if isinstance(value := response.extensions.get(name), bytes)
    }
    if "_elapsed" in state:
        found["t"] = round(state["_elapsed"] / timedelta(microseconds=1))
    if response.history:
        found["y"] = encoder.items(response.history, depth + 2)
    return found


def _library(name: object) -> Any:
    return _import(name) if isinstance(name, str) and name in HTTP_LIBRARIES else None


def _decode_request(_: Decoder, found: dict[str, Any]) -> Any:
    library = _library(found["lib"])
    if library is None:
        return Opaque(f"{found['lib']}:Request", f"<Request({found['m']!r}, {found['u']!r})>")
    content = b64decode(found["b"], validate=True) if "b" in found else None
    request = library.Request(found["m"], found["u"], content=content)
    request.headers = library.Headers([(name, value) for name, value in found["h"]])
    return request


def _decode_response(decoder: Decoder, found: dict[str, Any]) -> Any:
    library = _library(found["lib"])
    if library is None:
        return Opaque(f"{found['lib']}:Response", f"<Response [{found['s']}]>")
    read = "b" in found
    response = library.Response(
        found["s"],
        request=decoder.decode(found["q"]) if "q" in found else None,
        extensions={name: value.encode("latin-1") for name, value in found["x"].items()},
        history=[decoder.decode(earlier) for earlier in found.get("y", [])],
        **({"content": b64decode(found["b"], validate=True)} if read else {"stream": Opaque("stream", "<unread>")}),
    )
    response.headers = library.Headers([(name, value) for name, value in found["h"]])
    if "t" in found:
        response.elapsed = timedelta(microseconds=found["t"])
    return response


TAGS: dict[str, Callable[[Decoder, dict[str, Any]], Any]] = {
    "ndarray": _decode_array,
    "npscalar": _decode_numpy_scalar,
    "pydantic": _decode_model,
    "pydantic_zone": _decode_pydantic_zone,
    "request": _decode_request,
    "response": _decode_response,
}
"""How each tag of theirs is read."""
