"""torch's generators: where they stand is recorded where it does not follow. Skipped where torch is not installed."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from otel_agent_replay.boundary.lanes import LANE
from otel_agent_replay.instrument.libraries import torch as patch

if TYPE_CHECKING:
    from tests.conftest import Bench

BIN = Path(sys.executable).parent

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="torch is not installed: it is no dependency of the tests, for it takes gigabytes (pip install torch)",
)


@pytest.fixture
def torch(ambient):
    """torch, patched; its default generator is left as it was."""
    module = pytest.importorskip("torch")
    notes: list[object] = []
    state = module.get_rng_state()
    undo = patch.install(notes.append)
    yield module
    undo()
    module.set_rng_state(state)
    assert notes == []


def draws(torch) -> dict[str, object]:
    torch.manual_seed(1)
    half, ones = torch.full((6,), 0.5), torch.ones(3)
    query = torch.ones(1, 3, 4)
    own = torch.Generator().manual_seed(9)
    functional = torch.nn.functional
    recurring = {
        kind: getattr(torch.nn, kind)(2, 2, 2, dropout=0.5).requires_grad_(False) for kind in ("LSTM", "GRU", "RNN")
    }
    return {
        "rand": lambda: torch.rand(3),
        "randn": lambda: torch.randn(2, 2),
        "randn, an odd number": lambda: torch.randn(3),
        "one of a pair is kept for later": lambda: torch.empty(1).normal_(),
        "randint": lambda: torch.randint(10**6, (2,)),
        "randperm": lambda: torch.randperm(9),
        "rand_like": lambda: torch.rand_like(ones),
        "randn_like": lambda: torch.randn_like(ones),
        "randint_like": lambda: torch.randint_like(ones, 99),
        "into what is given": lambda: torch.rand(3, out=torch.empty(3)),
        "normal": lambda: torch.normal(ones, ones),
        "normal of numbers": lambda: torch.normal(1.0, 2.0, (3,)),
        "bernoulli": lambda: torch.bernoulli(half),
        "Tensor.bernoulli": lambda: half.bernoulli(),
        "multinomial": lambda: torch.multinomial(half, 2),
        "Tensor.multinomial": lambda: half.multinomial(2),
        "poisson": lambda: torch.poisson(ones * 4),
        "binomial": lambda: torch.binomial(ones * 9, ones * 0.5),
        **{
            name: lambda name=name, args=args: getattr(torch.empty(3), name)(*args)
            for name, args in {
                "normal_": (),
                "uniform_": (),
                "random_": (99,),
                "bernoulli_": (0.5,),
                "exponential_": (),
                "geometric_": (0.5,),
                "cauchy_": (),
                "log_normal_": (),
            }.items()
        },
        "dropout": lambda: functional.dropout(ones.repeat(4)),
        "Dropout": lambda: torch.nn.Dropout(0.5)(ones.repeat(4)),
        "alpha_dropout": lambda: functional.alpha_dropout(ones.repeat(4), training=True),
        "Dropout2d": lambda: torch.nn.Dropout2d()(torch.ones(4, 4, 1, 1)),
        "rrelu": lambda: functional.rrelu(-ones, training=True),
        "attention": lambda: functional.scaled_dot_product_attention(query, query, query, dropout_p=0.5),
        **{kind: lambda layer=layer: layer(torch.ones(3, 1, 2))[0] for kind, layer in recurring.items()},
        "kaiming": lambda: torch.nn.init.kaiming_normal_(torch.empty(2, 2)),
        "gumbel": lambda: functional.gumbel_softmax(half),
        "distributions": lambda: torch.distributions.Gamma(ones, ones).sample(),
        "Dirichlet": lambda: torch.distributions.Dirichlet(ones).sample(),
        "loader": lambda: [batch.tolist() for batch in loaded(torch)],
        "split": lambda: torch.utils.data.random_split(range(9), [5, 4])[0].indices,
        "own generator": lambda: torch.rand(2, generator=own),
        "own generator, by place": lambda: torch.poisson(ones * 4, own),
        "unseeded generator": lambda: torch.rand(2, generator=torch.Generator()),
        "seed": lambda: (torch.seed(), torch.rand(2).tolist(), torch.initial_seed()),
        "random.seed": lambda: (torch.random.seed(), torch.rand(2).tolist()),
        "Generator.seed": lambda: seeded(torch),
        "initial_seed": lambda: torch.initial_seed(),
        "state": lambda: torch.get_rng_state(),
        "state put back": lambda: put_back(torch),
        "fork_rng": lambda: forked(torch),
        "manual_seed": lambda: (torch.manual_seed(3), torch.rand(2).tolist())[1],
    }


def loaded(torch):
    return torch.utils.data.DataLoader(list(range(9)), batch_size=4, shuffle=True)


def seeded(torch):
    generator = torch.Generator()
    return generator.seed(), torch.rand(2, generator=generator).tolist(), generator.initial_seed()


def put_back(torch):
    state = torch.get_rng_state()
    first = torch.rand(2).tolist()
    torch.set_rng_state(state)
    assert torch.rand(2).tolist() == first
    return first


def forked(torch):
    with torch.random.fork_rng():
        inner = torch.rand(2).tolist()
    assert torch.rand(2).tolist() == inner
    return inner


def plain(value):
    return value.tolist() if hasattr(value, "tolist") else value


@needs_torch
def test_every_draw_is_what_it_was_and_comes_again(torch, ambient):
    unseeded = {"seed", "random.seed", "Generator.seed"}
    for name in draws(torch):
        draw = draws(torch)[name]
        torch.manual_seed(5)
        expected = [plain(draw()), plain(draw())]
        draw = draws(torch)[name]
        torch.manual_seed(5)
        recording = ambient()
        with recording.here():
            seen = [plain(draw()), plain(draw())]
        assert name in unseeded or seen == expected, name
        draw = draws(torch)[name]
        torch.manual_seed(77)
        replay = ambient(recording)
        with replay.here():
            again = [plain(draw()), plain(draw())]
        assert again == seen and replay.new == [], name


@needs_torch
def test_whatever_draws_is_patched(torch):
    """By the tag that torch gives its operators; what is left out belongs to other devices, or has no name."""
    named: set[str] = set()
    for schema in torch._C._jit_get_all_schemas():
        space, _, name = schema.name.partition("::")
        packet = getattr(torch.ops.aten, name, None) if space == "aten" else None
        if packet is not None and any(
            torch.Tag.nondeterministic_seeded in getattr(packet, overload).tags for overload in packet.overloads()
        ):
            named.add(name)
    assert len(named) > 40
    elsewhere = ("cudnn", "miopen", "mps", "efficient", "flash_attention_forward", "triton", "overrideable")
    ours = {name for name in named if not any(word in name for word in elsewhere) and not name.endswith("_functional")}
    ours -= {"_scaled_dot_product_flash_attention", "_fill_mem_eff_dropout_mask_", "_fused_sdp_choice"}
    ours -= {"_nested_tensor_softmax_with_shape"}  # whose tag says more than it does
    functions = {name for name in ours if hasattr(torch._C._VariableFunctions, name)}
    methods = {name for name in ours if hasattr(torch.Tensor, name)}
    neural = {name for name in ours if hasattr(torch._C._nn, name)}
    assert functions <= set(patch.FUNCTIONS)
    assert methods <= set(patch.METHODS)
    assert neural <= set(patch.NEURAL)
    assert ours - functions - methods - neural <= {
        "cauchy",
        "exponential",
        "geometric",
        "log_normal",
        "random",
        "uniform",
    }


@needs_torch
def test_lanes_that_draw_in_turns_replay_each_by_itself(torch, ambient):
    def run(session, order):
        lanes = {name: session.root.spawn("thread", name) for name in "ab"}
        with session.here():
            own = torch.Generator().manual_seed(4)
            torch.rand(2, generator=own)
        seen = {"a": [], "b": []}
        for name in order:
            token = LANE.set(lanes[name])
            try:
                seen[name].append(
                    [torch.rand(2).tolist(), torch.empty(2).normal_(generator=own).tolist(), torch.initial_seed()]
                )
                if len(seen[name]) == 2:
                    torch.manual_seed(ord(name))
            finally:
                LANE.reset(token)
        return seen

    recording = ambient()
    seen = run(recording, "abbaabbb")
    for order in ("aaabbbbb", "bbbbbaaa", "ababbabb"):
        replay = ambient(recording)
        assert run(replay, order) == seen and replay.new == []


@needs_torch
def test_one_more_draw_is_new_and_shifts_nothing(torch, ambient):
    def run(more=0):
        own = torch.Generator()
        own.seed()
        seen = [torch.rand(1).item(), torch.rand(1, generator=own).item()]
        extra = [[torch.rand(2).tolist(), torch.rand(2, generator=own).tolist()] for _ in range(more)]
        return [*seen, torch.randn(1).item(), torch.rand(1, generator=own).item()], extra

    recording = ambient()
    with recording.here():
        seen, _ = run()
    changes = []
    for _ in range(2):
        replay = ambient(recording)
        with replay.here():
            changes.append(run(more=1))
    assert changes[0] == changes[1]
    assert changes[0][0] == seen and changes[0][1]
    assert [source for source, _ in replay.new] == ["random:torch:rand"] * 2


@needs_torch
def test_one_lane_costs_next_to_nothing(torch, ambient):
    """One state at the start, and of each draw no more than that it was made."""
    recording = ambient()
    with recording.here():
        layer, ones = torch.nn.Dropout(0.5), torch.ones(5)
        for _ in range(500):
            layer(ones)
        layer.eval()
        before = recording.sources()
        layer(ones)
        torch.nn.functional.scaled_dot_product_attention(ones.view(1, 1, 5), ones.view(1, 1, 5), ones.view(1, 1, 5))
        torch.nn.LSTM(5, 2)(torch.ones(1, 1, 5))
    after = {name: count for name, count in recording.sources().items() if name != "random:torch:uniform_"}
    assert before == after == {"random:torch:dropout": 500}
    values = [value for (_, source, _), found in recording.values.items() if "dropout" in source for value in found]
    assert len(values[0]) < 5_000 and set(values[1:]) == {""}


@needs_torch
def test_generators_that_nobody_holds_are_given_up(torch, ambient):
    from otel_agent_replay.instrument import _torch_random

    with ambient().here():
        kept = [torch.Generator().manual_seed(number) for number in range(5)]
        for number in range(1000):
            torch.rand(1, generator=torch.Generator().manual_seed(number))
        known = {id(known[0]) for known in _torch_random._left.values()}
        assert len(known) <= _torch_random._FEWEST and {id(generator) for generator in kept} <= known


@needs_torch
def test_a_recorded_state_that_is_none_is_told(torch, ambient):
    def run():
        return torch.rand(1)

    for state in ("AAAA", "not base64 at all, and longer", "eJwDAAAAAAE=", 7):
        recording = ambient()
        with recording.here():
            run()
        for found in recording.values.values():
            found[:] = [state]
        with ambient(recording).here(), pytest.raises(ValueError, match="a recorded generator of torch"):
            run()


@needs_torch
def test_it_goes_out_again(ambient):
    module = pytest.importorskip("torch")

    def held():
        owners = (module, module._VF, module.nn.functional, module._C._nn, module.Tensor, module.Generator)
        names = ("rand", "dropout", "lstm", "scaled_dot_product_attention", "normal_", "seed", "manual_seed")
        return [getattr(owner, name, None) for owner in owners for name in names]

    before = held()
    undo, again = patch.install(lambda _: None), patch.install(lambda _: None)
    assert held() != before
    undo()
    assert held() != before
    again()
    assert held() == before


PROGRAM = """
import json, sys
import torch
from torch import nn, rand
from torch.utils.data import DataLoader

def main():
    seen = {
        "begins": [torch.initial_seed(), rand(2).tolist()],
        "kept": [torch.randn(3).tolist(), torch.randint(10**9, (2,)).tolist(), torch.randperm(5).tolist()],
        "in place": [torch.empty(2).normal_().tolist(), torch.empty(2).uniform_().tolist()],
        "layers": nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))(torch.ones(2, 3)).tolist(),
        "loader": [batch.tolist() for batch in DataLoader(list(range(9)), batch_size=4, shuffle=True)],
        "reseeded": [torch.seed(), torch.rand(1).item(), torch.random.seed(), torch.initial_seed()],
        "own": [(generator := torch.Generator()).seed(), torch.rand(1, generator=generator).item()],
    }
    torch.manual_seed(3)
    seen["seeded"] = [torch.rand(2).tolist(), torch.normal(torch.zeros(2), 1.0).tolist()]
    loader = DataLoader(list(range(9)), batch_size=4, shuffle=True, num_workers=2)
    seen["workers"] = [batch.tolist() for batch in loader]
    print(json.dumps(seen))

if __name__ == "__main__":
    main()
"""


def first_line(text: str) -> dict:
    return json.loads(text.splitlines()[0])


@needs_torch
def test_a_program_is_given_what_it_drew(bench: Bench):
    live = first_line(bench.record(PROGRAM))
    other = first_line(bench.run(sys.executable, "program.py").stdout)
    assert {name for name in live if other[name] != live[name]} == set(live) - {"seeded", "workers"}
    replayed = bench.replay(env=bench.env | {"PYTHONHASHSEED": "77"})
    assert replayed.code == 0, replayed.err
    assert first_line(replayed.out) == live
    assert [line for line in replayed.report["new_readings"] if "torch:" in line.split()[1]] == []


TWO = """
import asyncio, json, sys, threading, time
import torch
import otel_agent_replay

own = torch.Generator().manual_seed(6)

def step():
    return [torch.rand(2).tolist(), torch.randn(300).sum().item(), torch.rand(1, generator=own).item(),
            torch.nn.functional.dropout(torch.ones(6)).tolist()]

@otel_agent_replay.run("thread")
def in_thread(name):
    seen = []
    for _ in range(6):
        seen.append(step())
        time.sleep(0.002)
    print(json.dumps([name, seen]) + "\\n", end="", flush=True)

@otel_agent_replay.run("task")
async def in_task(name):
    seen = []
    for _ in range(6):
        seen.append(step())
        await asyncio.sleep(0)
    print(json.dumps([name, seen]) + "\\n", end="", flush=True)

async def both():
    await asyncio.gather(in_task("a"), in_task("b"))

if __name__ == "__main__":
    asyncio.run(both())
    threads = [threading.Thread(target=in_thread, args=(name,)) for name in "cd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


@needs_torch
def test_two_runs_at_once_replay_each_alone(bench: Bench):
    live = dict(json.loads(line) for line in bench.record(TWO).splitlines())
    assert set(live) == set("abcd")
    replayed = {}
    for found in bench.runs():
        if found["name"] in ("task", "thread"):
            done = bench.replay(run=found["run_id"], env=bench.env | {"PYTHONHASHSEED": "77"})
            assert done.code == 0, done.err
            assert done.report["new_readings"] == [] and done.report["unread"] == []
            replayed.update(json.loads(line) for line in done.out.splitlines() if line.startswith("["))
    assert replayed == live


UNHURT = """
import json, pickle, warnings
warnings.simplefilter("ignore")
import torch, torch.nn as nn, torch.nn.functional as F
from torch.overrides import TorchFunctionMode, resolve_name

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.drop = nn.LSTM(3, 3, 2, dropout=0.5), nn.Dropout(0.5)

    def forward(self, x):
        y = self.drop(self.layer(x)[0])
        return y + torch.rand_like(y) + F.rrelu(y, training=True) + torch.randn(y.shape)

class Named(TorchFunctionMode):
    seen = []
    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.seen.append(resolve_name(function))
        return function(*args, **(kwargs or {}))

def traced(x):
    x = x.clone().normal_()
    return F.dropout(x, 0.5, True) + torch.rand(3, 3) + F.scaled_dot_product_attention(x, x, x, dropout_p=0.3)

class Symbolic(nn.Module):
    def forward(self, x):
        return torch.bernoulli(x) + F.dropout(x) + torch.multinomial(x, 1)

def main():
    torch.manual_seed(0)
    ones, seen = torch.ones(2, 1, 3), []
    seen.append(torch.jit.script(Model())(ones).tolist())
    seen.append(torch.compile(Model(), backend="eager")(ones).tolist())
    seen.append(torch.compile(traced, backend="aot_eager", fullgraph=True)(torch.rand(3, 3)).tolist())
    seen.append(torch.fx.symbolic_trace(Symbolic())(torch.full((2, 2), 0.5)).tolist())
    seen.append(torch.func.vmap(lambda x: x + torch.rand(2), randomness="different")(torch.ones(3, 2)).tolist())
    with torch.device("meta"):
        seen.append([str(torch.rand(2).device), str(torch.randperm(2).device)])
    with Named():
        torch.rand(2).normal_()
    seen.append(Named.seen)
    seen.append([pickle.loads(pickle.dumps(it)) is it for it in (torch.rand, F.scaled_dot_product_attention)])
    seen.append([isinstance(torch.default_generator, torch.Generator), type(torch.manual_seed(1)).__name__])
    print(json.dumps(seen))

main()
"""


@needs_torch
def test_what_compiles_and_traces_torch_is_not_hurt(bench: Bench):
    live = bench.record(UNHURT)
    done = bench.run(sys.executable, "program.py")
    assert done.stdout == live, done.stderr
    replayed = bench.replay()
    assert replayed.code == 0 and replayed.out.splitlines()[0] == live.strip(), replayed.err


def test_torch_is_never_imported_by_us(bench: Bench):
    bench.write("", "torch.py")
    assert bench.record("import sys\nprint('torch' in sys.modules)") == "False\n"


def test_a_torch_of_another_shape_is_left_alone_and_named(bench: Bench):
    bench.write("class _C:\n    class Generator: pass\ndefault_generator = None\n__version__ = '99'\n", "torch.py")
    assert bench.record("import torch\nprint(torch.__version__)") == "99\n"
    shown = bench.run(BIN / "agent-replay", "show", "latest").stdout
    assert "torch 99 is not recorded" in shown and "incomplete" in shown
