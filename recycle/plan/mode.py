"""What a plan is allowed to do: the three choices that the ReCycle paper compares."""

from typing import Literal

import msgspec

from recycle.plan.routing import ROUTING_RULES, RoutingRule


class Mode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The freedoms of a plan.

    Attributes:
        backward: ``fused`` runs the input and the weight gradient as one instruction (B), so the gradient goes on to
            the previous stage only when both are done; ``split`` schedules I and W on their own.
        optimizer: ``global`` steps all stages behind one barrier; ``staggered`` steps each stage when its own
            gradients are ready, so that the next iteration of the first stages overlaps this one of the last.
        routing: ``home`` keeps a micro-batch on its own pipeline wherever that server is alive; ``free`` may give
            any micro-batch to any live server of the stage; or the name of a registered rule.
    """

    backward: Literal["fused", "split"] = "split"
    optimizer: Literal["global", "staggered"] = "staggered"
    routing: str = "home"

    def __post_init__(self) -> None:
        """Refuse a rule that is not known.

        Raises:
            ValueError: there is none of this name.
        """
        if self.routing not in ROUTING_RULES:
            raise ValueError(f"routing {self.routing!r}: there is none; choose from {', '.join(ROUTING_RULES)}")

    @property
    def routing_rule(self) -> RoutingRule:
        """Where micro-batches may be executed."""
        return ROUTING_RULES[self.routing]
