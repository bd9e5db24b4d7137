"""`DistributedOptimizer`: the user's optimizer, which steps with the gradients of all ranks.

In: any torch optimizer.  Out: an optimizer of a subclass with the same parameters and state, whose `step()` first waits
for the gradients, which were sent when backward produced them.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from undertow.engine.core.rounds import Op
from undertow.engine.interface import Group
from undertow.errors import ConfigError
from undertow.horovod.errors import NotThere, translated
from undertow.horovod.torch.compression import Compression
from undertow.horovod.torch.gradients import Named, StepGradients
from undertow.horovod.torch.process_sets import find_group, global_process_set
from undertow.horovod.torch.reducing import Average, Sum, choose_op


def DistributedOptimizer(  # noqa: N802  # Horovod's name
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: Any = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    process_set: Any = global_process_set,
) -> Any:
    """Return the optimizer with gradients averaged over the process set, or summed with `op=hvd.Sum`.

    All ranks of the process set call it with the same arguments.  On other ranks, steps use that rank's own gradients.
    Accepted without effect: `groups` and `num_groups` (small gradients are fused anyway), `gradient_predivide_factor`
    (nothing overflows: 16-bit floats are summed in 32 bits) and `sparse_as_dense`.
    """
    group = find_group(process_set)
    chosen = choose_op(op)
    if chosen not in (Average, Sum):
        raise ConfigError(f"op {chosen.name} does not give a gradient: use hvd.Average or hvd.Sum")
    if gradient_predivide_factor != 1.0 and chosen is not Average:
        raise ConfigError("gradient_predivide_factor is only possible with op=hvd.Average")
    if backward_passes_per_step <= 0:
        raise ConfigError(f"backward_passes_per_step is {backward_passes_per_step}: it must be at least 1")
    _check_groups(groups, num_groups)
    named = _name(optimizer, named_parameters)
    kind: Any = type(type(optimizer).__name__, (_Distributed, type(optimizer)), {})
    wrapped = object.__new__(kind)
    # All attributes of the user's optimizer, except the wrapper that a learning-rate scheduler puts around its step.
    vars(wrapped).update({name: value for name, value in vars(optimizer).items() if name != "step"})
    wrapped._connect(group, named, chosen is Sum, compression, backward_passes_per_step)
    # Horovod's names, which scripts read.
    wrapped.op, wrapped.process_set = Average if op is None else op, process_set
    wrapped.gradient_predivide_factor, wrapped.sparse_as_dense = gradient_predivide_factor, sparse_as_dense
    return wrapped


class _Distributed:
    """A mixin in front of the user's optimizer class."""

    param_groups: list[dict[str, Any]]
    _gradients: StepGradients | None
    # Horovod's name: scripts look parameters up in it.
    _parameter_names: dict[torch.nn.Parameter, str]

    def _connect(self, group: Group | None, named: Named, is_sum: bool, compression: Any, passes: int) -> None:
        self._gradients = None
        self._parameter_names = {parameter: name for name, parameter in named}
        self._watched: set[torch.nn.Parameter] = set()  # parameters whose gradients are synchronised
        self._waits = True  # in `step`; False inside `skip_synchronize`
        self._is_synchronized = False
        self._passes = passes
        if group is not None and group.size > 1:
            is_sparse = isinstance(self, torch.optim.SparseAdam)
            self._gradients = StepGradients(
                group,
                op=Op.SUM if is_sum else Op.MEAN,
                passes=passes,
                sparse={parameter for _, parameter in named} if is_sparse else (),
                compress=_choose_type(compression),
            )
            with translated():
                self._adopt()

    def _adopt(self) -> None:
        """Synchronise all parameters that require a gradient, including those added later."""
        assert self._gradients is not None
        new = []
        for group, params in enumerate(group["params"] for group in self.param_groups):
            for index, parameter in enumerate(params):
                if parameter.requires_grad and parameter not in self._watched:
                    self._watched.add(parameter)
                    name = self._parameter_names.setdefault(parameter, f"group {group} parameter {index}")
                    new.append((name, parameter))
        if new:
            self._gradients.watch(new)

    @property
    def backward_passes_per_step(self) -> int:
        return self._passes

    @backward_passes_per_step.setter
    def backward_passes_per_step(self, passes: int) -> None:
        """Set the number of passes, starting with the next step."""
        self._passes = passes
        if self._gradients is not None:
            self._gradients.passes = passes

    def set_backward_passes_per_step(self, passes: int) -> None:
        self._passes = passes
        if self._gradients is not None:
            self._gradients.set_passes(passes)

    def synchronize(self) -> None:
        """Wait until every `.grad` covers all ranks; then clip or unscale, and step inside `skip_synchronize`."""
        if self._gradients is not None:
            with translated():
                self._adopt()
                self._gradients.synchronize()
        self._is_synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Let steps inside the block use the gradients as they are."""
        self._waits = False
        try:
            yield
        finally:
            self._waits = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        if not self._waits:
            self._is_synchronized = False
            return self._step(closure)
        if self._is_synchronized and self._gradients is not None:
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() after optimizer.synchronize(): gradients "
                "are synchronised a second time. Put the step into `with optimizer.skip_synchronize():`",
                stacklevel=2,
            )
        if closure is None:
            self.synchronize()
        loss = self._step(None if closure is None else self._follow(closure))
        self._is_synchronized = False
        return loss

    # The user's own step runs torch's step hooks: torch must not wrap this method as well.
    step.hooked = True  # type: ignore[attr-defined]

    def _step(self, closure: Callable[[], Any] | None) -> Any:
        return super().step(closure) if closure is not None else super().step()  # type: ignore[misc]

    def _follow(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """Return a closure that also waits until the gradients it computes are synchronised."""

        def compute() -> Any:
            with torch.enable_grad():
                loss = closure()
            self.synchronize()
            return loss

        return compute

    def zero_grad(self, set_to_none: bool = True) -> None:
        if self._gradients is not None and self._gradients.is_under_way:
            raise AssertionError(
                "optimizer.zero_grad() between loss.backward() and optimizer.step(): gradients are in flight. Call "
                "optimizer.step() or optimizer.synchronize() first"
            )
        super().zero_grad(set_to_none)  # type: ignore[misc]


def _name(optimizer: torch.optim.Optimizer, given: Iterable[Any] | None) -> Named:
    """Return every parameter with its name, which must be the same on all ranks."""
    own = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if given is None:
        return [(f"parameter {index}", parameter) for index, parameter in enumerate(own)]
    named = list(given)
    if any(not isinstance(item, tuple) for item in named):
        raise ConfigError("named_parameters must be pairs of name and parameter, such as model.named_parameters()")
    twice = [name for name, count in Counter(name for name, _ in named).items() if count > 1]
    if twice:
        raise ConfigError(f"named_parameters contains names more than once: {', '.join(sorted(twice))}")
    known = {parameter for _, parameter in named}
    missing = sum(parameter not in known for parameter in own)
    if missing:
        raise ConfigError(
            f"named_parameters lacks {missing} of the optimizer's {len(own)} parameters: give "
            "model.named_parameters() of the whole model, or leave named_parameters out"
        )
    return named


def _check_groups(groups: Any, num_groups: int) -> None:
    if num_groups:
        warnings.warn("num_groups is deprecated: use groups", DeprecationWarning, stacklevel=3)
    if groups is None:
        return
    if not isinstance(groups, list):
        if groups <= 0:
            raise ConfigError(f"groups is {groups}: give a number above zero, or lists of parameters")
        return
    members = [member for group in groups for member in group]
    if not all(isinstance(member, torch.Tensor) for member in members):
        raise ConfigError("groups must be lists of parameters")
    if len(set(members)) < len(members):
        raise ConfigError("groups contains a parameter more than once")


def _choose_type(compression: Any) -> Callable[[torch.Tensor], torch.dtype | None]:
    """Return a function that returns the type in which a parameter's gradient is sent, or None for its own type."""
    if compression is Compression.none:
        return lambda parameter: None
    if compression is Compression.fp16:
        return lambda parameter: torch.float16 if parameter.is_floating_point() else None
    raise NotThere("custom compressors are not supported: use hvd.Compression.none or hvd.Compression.fp16")
