"""Main parameters: what the optimizer steps, in full precision, also where the model computes in less.

A model in bfloat16 would lose small updates to rounding, and the small terms in a sum of gradients. So gradients are
added up in full precision, a copy in full precision is stepped, and the model gets its rounded values.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

import torch

PRECISION = torch.float32
EVERYTHING = slice(None)
"""All main parameters of a server."""


class MainParameters:
    """The main parameters of a server: its own where they are in full precision, copies where they are not.

    Args:
        stages: the parameters of each of its stages.
    """

    def __init__(self, *stages: Iterable[torch.nn.Parameter]) -> None:
        trained = [[each for each in parameters if each.requires_grad] for parameters in stages]
        self._main = {each: _main(each) for parameters in trained for each in parameters}
        self._sizes = [len(parameters) for parameters in trained]
        for model, main in self._main.items():
            if main is not model:
                model.register_post_accumulate_grad_hook(_move_gradient)  # type: ignore[no-untyped-call]

    def __iter__(self) -> Iterator[torch.nn.Parameter]:
        return iter(self._main.values())

    def use(self, gradients: Sequence[torch.Tensor], which: slice = EVERYTHING) -> None:
        """From now on, these are the gradients: autograd adds to them, and the optimizer steps with them.

        Args:
            gradients: one per main parameter, in their order.
            which: of them are meant.
        """
        for (model, main), gradient in list(zip(self._main.items(), gradients, strict=True))[which]:
            main.grad = gradient
            if main is not model:
                # The name by which Megatron knows it, and the queue of weight gradients.
                model.main_grad = gradient  # type: ignore[attr-defined]

    def number(self, parameter: torch.nn.Parameter) -> int:
        """The place of a parameter of the model among the main parameters."""
        return next(place for place, each in enumerate(self._main) if each is parameter)

    def of_stage(self, stage: int) -> slice:
        """Which of the main parameters are those of a stage, by its place among the server's."""
        first = sum(self._sizes[:stage])
        return slice(first, first + self._sizes[stage])

    def step(self, optimizer: torch.optim.Optimizer, which: slice = EVERYTHING) -> None:
        """Have an optimizer step with the gradients in use.

        Args:
            optimizer: of the main parameters.
            which: of them are stepped; the others stay as they are.
        """
        members = list(self)
        stepped = set(range(len(members))[which])
        others = [(each, each.grad) for place, each in enumerate(members) if place not in stepped]
        for each, _ in others:
            # Optimizers pass over what has no gradient.
            each.grad = None
        optimizer.step()
        for each, gradient in others:
            each.grad = gradient
        self.copy_back(which)

    def counted(self, gradients: Sequence[torch.Tensor], first: bool = True) -> list[list[torch.Tensor]]:
        """The gradients that count in a norm, by stage: of a parameter that others have as well, only one counts.

        Megatron marks those that another stage has too, and those of which each rank of a server has a part of its own.

        Args:
            gradients: one per main parameter, in their order.
            first: whether this is the first rank of its server, with which those that all its ranks have are counted.
        """
        pairs = zip(self._main, gradients, strict=True)
        return [
            [
                each
                for model, each in islice(pairs, size)
                if not getattr(model, "shared", False) and (first or getattr(model, "tensor_model_parallel", False))
            ]
            for size in self._sizes
        ]

    def copy_here(self) -> None:
        """Take the values of the model."""
        with torch.no_grad():
            for model, main in self._main.items():
                if main is not model:
                    main.copy_(model)

    def copy_back(self, which: slice = EVERYTHING) -> None:
        """Give the model the values of the main parameters, rounded to its precision."""
        with torch.no_grad():
            for model, main in list(self._main.items())[which]:
                if main is not model:
                    model.copy_(main)

    def named(self, module: torch.nn.Module) -> Mapping[str, torch.nn.Parameter]:
        """The main parameters by their names in a module."""
        return {name: self._main[each] for name, each in module.named_parameters() if each in self._main}


def _main(parameter: torch.nn.Parameter) -> torch.nn.Parameter:
    if parameter.element_size() >= PRECISION.itemsize:
        return parameter
    return torch.nn.Parameter(parameter.detach().to(PRECISION))


def _move_gradient(parameter: torch.Tensor) -> None:
    # Where the weight gradient is still owed, there is none.
    if parameter.grad is not None:
        parameter.main_grad.add_(parameter.grad)  # type: ignore[attr-defined]
        parameter.grad = None
