"""torch: what its generators of the processor draw, patched once the program has imported it."""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import wrapt

from otel_agent_replay.boundary import lanes
from otel_agent_replay.boundary.callers import caller
from otel_agent_replay.instrument import _torch_random
from otel_agent_replay.instrument._ambient import Installation, Patches
from otel_agent_replay.recording.values import Note, NoteKind

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

MODULE: Final = "torch"


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


FUNCTIONS: Final = _names("""
_fused_dropout _sample_dirichlet _scaled_dot_product_attention_math _scaled_dot_product_flash_attention_for_cpu
_standard_gamma alpha_dropout alpha_dropout_ bernoulli binomial dropout dropout_ feature_alpha_dropout
feature_alpha_dropout_ feature_dropout feature_dropout_ gru lstm multinomial native_dropout normal poisson rand
rand_like randint randint_like randn randn_like randperm rnn_relu rnn_tanh rrelu rrelu_
""")
"""Functions of torch that draw: its operators with the tag `nondeterministic_seeded`, but those of other devices."""
METHODS: Final = _names("""
bernoulli bernoulli_ cauchy_ exponential_ geometric_ log_normal_ multinomial normal_ random_ uniform_
""")
"""Methods of a tensor that do."""
NEURAL: Final = ("rrelu_with_noise", "rrelu_with_noise_", "scaled_dot_product_attention")
"""Functions of `torch._C._nn` that do."""

_LOOKING: Final = ("get_state", "initial_seed", "clone_state", "graphsafe_get_state", "__reduce__")
_PLACING: Final = ("manual_seed", "set_state", "graphsafe_set_state")


def install(report: Callable[[Note], None]) -> Callable[[], None]:
    """Patch torch, now or once it is imported. Gives what undoes it; several installations patch once.

    Args:
        report: told where it has an unknown shape, and so stays unpatched.
    """
    _reports.append(report)
    if _unknown:
        report(_unknown[0])
    undo = _installation.install()

    def uninstall() -> None:
        if report in _reports:
            _reports.remove(report)
        undo()

    return uninstall


_reports: list[Callable[[Note], None]] = []
_unknown: list[Note] = []
"""Why it is left alone, where its shape is unknown."""
_awaited: list[Installation] = []


def _put(patches: Patches) -> None:
    _unknown.clear()
    if MODULE in sys.modules:
        _patch(patches, sys.modules[MODULE])
    elif not _awaited:
        _awaited.append(_installation)
        wrapt.register_post_import_hook(_imported, MODULE)


_installation = Installation(_put)


def _imported(module: ModuleType) -> None:
    patches = _awaited.pop().patches
    if patches is not None:
        _patch(patches, module)


def _patch(patches: Patches, torch: Any) -> None:
    """Never raises: that would break the program's import."""
    made = Patches()
    try:
        shape = _torch_random.Shape(torch)
        _put_functions(made, torch, shape)
        _put_methods(made, torch, shape)
        _put_generators(made, shape)
    except (AttributeError, KeyError, LookupError, TypeError, ValueError, RuntimeError) as error:
        made.undo()
        version = getattr(torch, "__version__", "")
        note = Note(NoteKind.UNKNOWN_SHAPE, f"{MODULE} {version} is not recorded: {error!r}", MODULE)
        _unknown.append(note)
        for report in _reports:
            report(note)
        return
    made.rebind()
    patches.on_undo(made.undo)
    _begin(shape)


def _begin(shape: _torch_random.Shape) -> None:
    """What torch has taken of entropy while it was imported."""
    lane, frame = lanes.current(), caller(0)
    if lane is not None and lane.beneath is None and frame is not None:
        _torch_random.begin(shape, lane, frame)


def _put_functions(patches: Patches, torch: Any, shape: _torch_random.Shape) -> None:
    functions, neural = torch._C._VariableFunctions, torch._C._nn  # noqa: SLF001 (where they are)
    replaced: dict[str, Any] = {}
    for owner, names in ((functions, FUNCTIONS), (neural, NEURAL)):
        for name in names:
            original = getattr(owner, name, None)
            if original is None:
                continue  # this version has none
            ours = _torch_random.drawing(shape, original, name, _DRAWS.get(name, _always))
            ours.__module__, ours.__qualname__ = torch.__name__ if owner is functions else neural.__name__, name
            for module in (torch, neural, torch.nn.functional):
                if vars(module).get(name) is original:
                    patches.put(module, name, ours)
            if owner is functions:
                replaced[name] = staticmethod(ours)
            _tell_scripts(original, ours, name)
    patches.put_entries(type(functions), replaced)
    for forget in _caches(torch):
        forget()
        patches.on_undo(forget)


def _caches(torch: Any) -> list[Callable[[], None]]:
    """What forgets the sets of torch's functions that torch has made."""
    modules = [sys.modules.get(f"torch.{name}") for name in ("utils._device", "overrides", "_dynamo.trace_rules")]
    return [
        value.cache_clear
        for module in modules
        if module is not None
        for value in list(vars(module).values())
        if hasattr(value, "cache_clear") and getattr(value, "__module__", None) == module.__name__
    ]


def _tell_scripts(original: Any, ours: Any, name: str) -> None:
    """Let what compiles TorchScript know both by the operator that they are: it goes by their ids."""
    builtins: Any = sys.modules["torch.jit._builtins"]
    for function in (original, ours):
        builtins._builtin_ops.append((function, f"aten::{name}"))  # noqa: SLF001
        if builtins._builtin_table is not None:  # noqa: SLF001
            builtins._builtin_table[id(function)] = f"aten::{name}"  # noqa: SLF001


def _put_methods(patches: Patches, torch: Any, shape: _torch_random.Shape) -> None:
    for name in METHODS:
        ours = _torch_random.drawing(shape, getattr(torch.Tensor, name), name, _always)
        ours.__module__, ours.__qualname__ = torch.__name__, f"Tensor.{name}"
        patches.put(torch.Tensor, name, ours)


def _put_generators(patches: Patches, shape: _torch_random.Shape) -> None:
    entries = vars(shape.kind)
    replaced: dict[str, Any] = {"seed": _torch_random.seeding(shape, entries["seed"])}
    replaced |= {name: _torch_random.looking(shape, entries[name], name) for name in _LOOKING if name in entries}
    replaced |= {name: _torch_random.placing(shape, entries[name]) for name in _PLACING if name in entries}
    patches.put_entries(shape.kind, replaced)


# -- which calls draw --------------------------------------------------------------------------------------


def _always(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return True


def _in_training(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Dropout: given what to drop of, how much, and whether."""
    train = args[2] if len(args) > 2 else kwargs.get("train", True)
    return train is not False


def _with_dropout(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Layers that recur: how much they drop is their only float, and whether follows it."""
    for share, train in pairwise(args):
        if type(share) is float:
            return share > 0 and train is not False
    return kwargs.get("dropout") != 0 and kwargs.get("train") is not False


def _attention(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return bool((args[4] if len(args) > 4 else kwargs.get("dropout_p", 0.0)) != 0)


_DRAWS: Final[dict[str, Callable[[tuple[Any, ...], dict[str, Any]], bool]]] = {
    **dict.fromkeys([name for name in FUNCTIONS if name.removesuffix("_").endswith("dropout")], _in_training),
    "_fused_dropout": _always,
    **dict.fromkeys(("gru", "lstm", "rnn_relu", "rnn_tanh"), _with_dropout),
    "scaled_dot_product_attention": _attention,
    "_scaled_dot_product_attention_math": _attention,
}
"""Those that draw only if they are told to: a model that answers calls them often."""
