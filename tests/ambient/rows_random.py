"""Randomness: every function that draws, what makes generators, ids and names of temporary files."""

from __future__ import annotations

import random
import uuid

from tests.ambient.table import FORMS, Row

_RANDOM = "import random"
_NUMPY = "import numpy as np"
_EVERY = tuple(FORMS)
_NAMES = ("attribute", "alias")

_LOOKED_UP = {
    "betavariate": "2, 3",
    "choice": "range(10**9)",
    "choices": "range(10**9), k=3",
    "expovariate": "1.5",
    "gammavariate": "9, 3",
    "lognormvariate": "0, 1",
    "normalvariate": "0, 1",
    "paretovariate": "3",
    "randbytes": "9",
    "randint": "1, 10**12",
    "randrange": "10**12",
    "sample": "range(10**9), 4",
    "triangular": "0, 1, 0.5",
    "uniform": "1, 2",
    "vonmisesvariate": "0, 4",
    "weibullvariate": "1, 1.5",
    **({"binomialvariate": "10**6, 0.4"} if hasattr(random, "binomialvariate") else {}),
}
"""Methods that draw by `random` and `getrandbits`, which they look up: it is of no matter who holds them since when."""

_ITSELF = {"random": "", "getrandbits": "70", "gauss": "0, 1"}
"""Held as a value since before, these are what they were."""

_ENTROPY = {
    "secrets.token_bytes": "",
    "secrets.token_hex": "9",
    "secrets.token_urlsafe": "",
    "secrets.randbelow": "10**15",
    "secrets.randbits": "90",
    "secrets.choice": "range(10**9)",
    "random.SystemRandom().random": "",
    "random.SystemRandom().gauss": "0, 1",
    "random.SystemRandom().sample": "range(10**9), 3",
}

_UUIDS = [name for name in ("uuid1", "uuid6", "uuid7", "uuid8") if hasattr(uuid, name)]

_RUST_UUIDS = ("uuid1", "uuid4", "uuid6", "uuid7")

_FAST_UUIDS = ("uuid1", "uuid4", "uuid7")

_LEGACY = {
    "bytes": "9",
    "choice": "10**9",
    "normal": "1, 2, 3",
    "permutation": "20",
    "poisson": "10**9",
    "rand": "2, 2",
    "randint": "10**9",
    "randn": "3",
    "random": "",
    "random_sample": "",
    "standard_normal": "100",
    "uniform": "0, 1",
}

_MAKERS = {
    "Random()": ("random.Random().random()", _RANDOM),
    "a subclass of Random": ("Mine().random()", f"{_RANDOM}\nMine = type('Mine', (random.Random,), {{}})"),
    "Random().seed()": ("[rng := random.Random(1), rng.seed(), rng.random()][-1]", _RANDOM),
    "random.seed()": ("[random.seed(), random.random(), random.getstate()[1][:5]]", _RANDOM),
    "random.getstate": ("random.getstate()", _RANDOM),
    "random.setstate": ("[rng := random.Random(1), rng.setstate(random.getstate()), rng.random()][-1]", _RANDOM),
    "random.shuffle": ("[items := list(range(40)), random.shuffle(items)][0]", _RANDOM),
    "RandomState()": ("np.random.RandomState().random_sample()", _NUMPY),
    "default_rng()": ("np.random.default_rng().random()", _NUMPY),
    "default_rng() spawned": ("np.random.default_rng().spawn(2)[1].random()", _NUMPY),
    "Generator(PCG64())": ("np.random.Generator(np.random.PCG64()).random()", _NUMPY),
    "SeedSequence()": ("np.random.SeedSequence().generate_state(2).tolist()", _NUMPY),
    "numpy.random.seed()": ("[np.random.seed(), np.random.random()]", _NUMPY),
    "numpy.random.get_state": ("np.random.get_state()[1].tolist()", _NUMPY),
    "numpy.random.shuffle": ("[items := list(range(40)), np.random.shuffle(items)][0]", _NUMPY),
    "pandas sample": ("pd.Series(range(10**5)).sample(3).tolist()", "import pandas as pd"),
    "mkdtemp": ("[name := tempfile.mkdtemp(), os.rmdir(name)][0]", "import os, tempfile"),
    "mkstemp": (
        "[found := tempfile.mkstemp(), os.close(found[0]), os.unlink(found[1])] and found[1]",
        "import os, tempfile",
    ),
    "NamedTemporaryFile": ("[file := tempfile.NamedTemporaryFile(), file.close()][0].name", "import tempfile"),
    "TemporaryDirectory": ("[folder := tempfile.TemporaryDirectory(), folder.cleanup()][0].name", "import tempfile"),
    "statistics.NormalDist": ("statistics.NormalDist().samples(2)", "import statistics"),
    "email.utils.make_msgid": ("email.utils.make_msgid(domain='x')", "import email.utils"),
}

_SEEDED = {
    "random.seed(7)": ("[random.seed(7), random.random(), random.choice('abc'), random.gauss(0, 1)]", _RANDOM),
    "Random(7)": ("[rng := random.Random(7), rng.random(), rng.sample(range(99), 3)][1:]", _RANDOM),
    "numpy.random.seed(7)": ("[np.random.seed(7), np.random.random(), np.random.rand(99).tolist()]", _NUMPY),
    "default_rng(7)": ("[rng := np.random.default_rng(7), rng.random(), rng.normal(size=3).tolist()][1:]", _NUMPY),
}

ROWS = [
    *(Row(f"random.{n}", f"random.{n}", a, setup=_RANDOM, before=_EVERY) for n, a in _LOOKED_UP.items()),
    *(Row(f"random.{n}", f"random.{n}", a, setup=_RANDOM, before=_NAMES) for n, a in _ITSELF.items()),
    *(Row(n, n, a, setup="import random, secrets", before=_EVERY) for n, a in _ENTROPY.items()),
    Row("os.urandom", "os.urandom", "9", setup="import os", before=_NAMES),
    Row("os.getrandom", "os.getrandom", "9", setup="import os", before=_NAMES),
    Row("ssl.RAND_bytes", "ssl.RAND_bytes", "9", setup="import ssl", before=_NAMES),
    Row("uuid.uuid4", "uuid.uuid4", setup="import uuid", before=_EVERY),
    *(Row(f"uuid.{name}", f"uuid.{name}", setup="import uuid", before=_NAMES) for name in _UUIDS),
    Row("uuid.getnode", "uuid.getnode", setup="import uuid", varies=False, before=_NAMES),
    *(
        Row(f"uuid_utils.{n}", f"uuid_utils.{n}", setup="import uuid_utils", before=_NAMES)
        for n in ("uuid1", "uuid4", "uuid7")
    ),
    *(
        Row(f"fastuuid.{n}", f"fastuuid.{n}", setup="import fastuuid", before=_NAMES)
        for n in ("uuid1", "uuid4", "uuid7")
    ),
    *(Row(f"numpy.random.{n}", f"np.random.{n}", a, setup=_NUMPY, before=_NAMES) for n, a in _LEGACY.items()),
    *(Row(name, expression=text, setup=setup) for name, (text, setup) in _MAKERS.items()),
    *(Row(name, expression=text, setup=setup, varies=False) for name, (text, setup) in _SEEDED.items()),
    Row("an early default_rng", expression="make().random()", setup="from numpy.random import default_rng as make"),
    Row("an early Random", expression="Early().random()", setup="from random import Random as Early"),
]
