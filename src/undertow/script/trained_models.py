"""The models that the optimizers of a single-process script train.

In: optimizers, and the parameters given to them.  Out: those parameters, and the buffers of their modules, are the same
on all ranks.  A rank's own weights are saved when rank 0's overwrite them, and restored if the script joins the other
workers itself.  The modules are found among all objects of the process.
"""

from __future__ import annotations

import gc
import itertools
import operator
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from undertow.engine.interface import Group
from undertow.script.adopted_model import AdoptedModel, LooseParameters, ModelBuffers
from undertow.torch.modules.forwards import is_opaque


class TrainedModels:
    """Adopted models of one script, found by optimizer and by parameter; each lives as long as its module."""

    def __init__(self, *, overlaps: bool) -> None:
        self.has_batch_norm = False  # in any of them
        self._overlaps = overlaps
        self.own_weights = OwnWeights()
        self._models: weakref.WeakSet[AdoptedModel] = weakref.WeakSet()
        self._buffers: weakref.WeakSet[ModelBuffers] = weakref.WeakSet()
        self._untrained: list[AdoptedModel] = []  # no step has been made; in the order of adoption
        self._loose: list[AdoptedModel] = []  # kept alive here, because nothing else holds their module
        self._owners: Any = WeakIdKeyDictionary()  # parameter: a weak reference to its model
        self._trained_by: weakref.WeakKeyDictionary[Optimizer, weakref.WeakSet[AdoptedModel]] = (
            weakref.WeakKeyDictionary()
        )

    def adopt(self, optimizer: Optimizer, parameters: Sequence[torch.Tensor], group: Group) -> int:
        """Keep these parameters the same on all ranks of the group; return how many of them are new."""
        new = [p for p in parameters if isinstance(p, torch.nn.Parameter) and p not in self._owners]
        if new:
            self._adopt_models(new, group)
        # Including parameters that another optimizer has brought.
        owners = [self._owners[parameter]() for parameter in parameters if parameter in self._owners]
        models = self._trained_by.setdefault(optimizer, weakref.WeakSet())
        models.update(owner for owner in owners if owner is not None)
        return len(new)

    def models_of(self, optimizer: Optimizer) -> Iterable[AdoptedModel]:
        return self._trained_by.get(optimizer, ())

    def note_trained(self, model: AdoptedModel) -> None:
        """Note that an optimizer steps this model."""
        model.has_trained = True
        self.own_weights.forget(parameter for _, parameter in model.named_parameters())
        self._untrained = [other for other in self._untrained if not other.has_trained]

    def copy_untrained(self) -> None:
        """Copy rank 0's weights again to the models that no optimizer has stepped: the script may have changed them."""
        untrained, self._untrained = self._untrained, []
        for model in untrained:
            self._copy_weights(model)

    def list_trained(self) -> list[AdoptedModel]:
        """Return the models trained in this epoch, in an order that is the same on all ranks.

        The other models may be garbage that only some ranks have collected yet.
        """
        return sorted((model for model in self._models if model.has_trained), key=lambda model: model.number)

    def end_epoch(self, trained: Sequence[AdoptedModel]) -> None:
        """Copy rank 0's buffers, because the script may not call the model's forward again."""
        for buffers in dict.fromkeys(model.buffers for model in trained if model.buffers is not None):
            buffers.copy()
        for model in trained:
            model.has_trained = False

    def finish(self) -> None:
        """Wait until nothing of the last pass is in flight and every step has been made."""
        for model in self._models:
            model.finish()

    def release(self) -> None:
        for model in self._models:
            model.release()
        for buffers in self._buffers:
            buffers.release()
        self._untrained, self._loose = [], []

    def _adopt_models(self, parameters: Sequence[torch.nn.Parameter], group: Group) -> None:
        rest = {id(parameter): parameter for parameter in parameters}
        for model, *twins in find_models(parameters):
            held = [p for p in model.parameters() if rest.pop(id(p), None) is not None]
            if held:
                adopted = self._add(find_holder(model, held), held)
                adopted.buffers = self._follow_buffers(model, twins, group)
                holders = {id(holder): holder for holder in (find_holder(twin, held) for twin in twins)}
                for holder in holders.values():
                    if holder is not adopted.module:
                        adopted.follow(holder)
        if rest:
            self._loose.append(self._add(LooseParameters(list(rest.values())), list(rest.values())))

    def _add(self, module: torch.nn.Module, parameters: Sequence[torch.nn.Parameter]) -> AdoptedModel:
        adopted = AdoptedModel(module, parameters, overlaps=self._overlaps)
        self._copy_weights(adopted)
        for parameter in parameters:
            self._owners[parameter] = weakref.ref(adopted)
        self._models.add(adopted)
        self._untrained.append(adopted)
        return adopted

    def _copy_weights(self, adopted: AdoptedModel) -> None:
        self.own_weights.copy([parameter for _, parameter in adopted.named_parameters()], adopted.copy_weights)

    def _follow_buffers(
        self, model: torch.nn.Module, twins: Sequence[torch.nn.Module], group: Group
    ) -> ModelBuffers | None:
        if next(model.buffers(), None) is None:
            return None
        for buffers in self._buffers:
            if any(buffers.module is one for one in (model, *twins)):
                return buffers
        made = ModelBuffers(model, group)
        for twin in twins:
            made.follow(twin)
        self._buffers.add(made)
        kind = torch.nn.modules.batchnorm._BatchNorm
        self.has_batch_norm |= any(isinstance(module, kind) for module in model.modules())
        return made


class OwnWeights:
    """A rank's own values of overwritten parameters, kept until an optimizer steps them.

    Only values that differ from rank 0's are kept.  In most scripts all ranks draw the same weights, so none are.
    """

    def __init__(self) -> None:
        self._replaced: Any = WeakIdKeyDictionary()  # parameter: its own value, and rank 0's

    @torch.no_grad()
    def copy(self, parameters: Collection[torch.Tensor], copy: Callable[[], None]) -> None:
        """Run `copy`, which overwrites these parameters, and keep their own values."""
        own = [(parameter, self._find_own(parameter)) for parameter in parameters]
        copy()
        for parameter, value in own:
            if _are_equal(parameter, value):
                self._replaced.pop(parameter, None)
            else:
                self._replaced[parameter] = value, parameter.detach().clone()

    def forget(self, parameters: Iterable[torch.Tensor]) -> None:
        """Drop the values of these parameters, because an optimizer steps them."""
        for parameter in parameters:
            self._replaced.pop(parameter, None)

    @torch.no_grad()
    def restore(self) -> None:
        """Restore the values, except for parameters that the script has changed since."""
        for parameter, (own, given) in list(self._replaced.items()):
            if _are_equal(parameter, given):
                parameter.copy_(own)
        self._replaced = WeakIdKeyDictionary()

    def _find_own(self, parameter: torch.Tensor) -> torch.Tensor:
        own, given = self._replaced.get(parameter, (None, None))
        if own is not None and _are_equal(parameter, given):
            return torch.as_tensor(own)
        return parameter.detach().clone()


def _are_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Compare the values exactly; any NaN equals any other NaN."""
    if one.shape != other.shape or one.dtype != other.dtype or one.device != other.device:
        return False
    return bool(((one == other) | ((one != one) & (other != other))).all())


@dataclass(frozen=True)
class _Root:
    """An outermost module that holds parameters of an optimizer."""

    module: torch.nn.Module
    indices: tuple[int, ...]  # of these parameters in the optimizer; never empty

    @property
    def order(self) -> tuple[Any, ...]:
        """A sort key that is the same on all ranks; among equals, the module that holds the most comes first."""
        names = tuple(name for name, _ in self.module.named_parameters())
        return self.indices[0], -len(self.indices), self.indices, type(self.module).__qualname__, names


def find_models(parameters: Sequence[torch.Tensor]) -> list[list[torch.nn.Module]]:
    """Return the outermost modules that hold some of the parameters, in an order that is the same on all ranks.

    Modules that cannot be told apart across ranks are in one list.
    """
    gc.collect()  # modules that are garbage may still exist on some ranks
    order = operator.attrgetter("order")
    roots = sorted(_find_roots(parameters), key=order)
    return [[root.module for root in twins] for _, twins in itertools.groupby(roots, order)]


def _find_roots(parameters: Sequence[torch.Tensor]) -> list[_Root]:
    ids = {id(parameter): index for index, parameter in enumerate(parameters)}
    holding: dict[int, _Root] = {}
    # By type, not by isinstance: some objects pretend to be of another class, and isinstance runs their code.
    for module in [each for each in gc.get_objects() if issubclass(type(each), torch.nn.Module)]:
        indices = sorted({ids[id(parameter)] for parameter in _parameters_of(module) if id(parameter) in ids})
        if indices:
            holding[id(module)] = _Root(module, tuple(indices))
    inner = {id(child) for root in holding.values() for child in root.module.modules() if child is not root.module}
    return [root for key, root in holding.items() if key not in inner]


def find_holder(module: torch.nn.Module, parameters: Collection[torch.Tensor]) -> torch.nn.Module:
    """Return the innermost module inside this one that holds all of these parameters."""
    wanted = {id(parameter) for parameter in parameters}
    while not is_opaque(module):
        inner = [child for child in module.children() if wanted <= {id(p) for p in _parameters_of(child)}]
        if len(inner) != 1 or any(id(p) in wanted for p in module.parameters(recurse=False)):
            break
        module = inner[0]
    return module


def _parameters_of(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    try:
        yield from module.parameters()
    except (AttributeError, TypeError):
        return  # its constructor has not finished
