"""What the fuzzer drives: one decoder and the code behind it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.fuzz.mutation import Mutate, damage_bytes
from undertow.errors import UndertowError


@dataclass(frozen=True, kw_only=True)
class Target:
    """`run` takes any bytes, and raises nothing but `allowed`; `finish` is called when no more bytes come."""

    name: str
    decodes: tuple[str, ...] = ()  # the files of src/undertow whose decoders it drives
    samples: Sequence[bytes]
    run: Callable[[bytes], object]
    mutate: Mutate = damage_bytes
    allowed: tuple[type[Exception], ...] = (UndertowError,)
    cost: int = 1  # about how many others take as long: so many times less often it is run
    finish: Callable[[], None] = field(default=lambda: None)

    def make_input(self, seed: int, number: int) -> bytes:
        """The same for the same numbers; number 0 and on are the samples as they are."""
        if number < len(self.samples):
            return self.samples[number]
        return self.mutate(random.Random(f"{self.name} {seed} {number}"), self.samples)

    def find_failure(self, data: bytes) -> Exception | None:
        """What `run` must not have raised."""
        try:
            self.run(data)
        except self.allowed:
            return None
        except Exception as error:
            return error
        return None
