"""What a plan is allowed to do: the three choices that the ReCycle paper compares.

Whatever the routing, a micro-batch may stay at home where its home server is alive. Which pipeline is which does not
matter: one plan is read for other dead servers by renaming its pipelines (``recycle.plan.normalise``).
"""

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

Routing: TypeAlias = Literal["home", "free"]

ROUTINGS: Mapping[Routing, str] = {"home": "healthy micro-batches stay on their pipeline", "free": "any may move"}
"""Where micro-batches may be executed, in a few words; the usual one first."""


class Mode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The freedoms of a plan.

    Attributes:
        backward: ``fused`` runs the input and the weight gradient as one instruction (B), so the gradient goes on to
            the previous stage only when both are done; ``split`` schedules I and W on their own.
        optimizer: ``global`` steps all stages behind one barrier; ``staggered`` steps each stage when its own
            gradients are ready, so that the next iteration of the first stages overlaps this one of the last.
        routing: ``home`` keeps a micro-batch on its own pipeline wherever that server is alive; ``free`` may give
            any micro-batch to any live server of the stage.
    """

    backward: Literal["fused", "split"] = "split"
    optimizer: Literal["global", "staggered"] = "staggered"
    routing: Routing = "home"

    @property
    def keeps_home(self) -> bool:
        """Whether a micro-batch stays on its own pipeline wherever that server is alive."""
        return self.routing == "home"

    def hosts(self, home: int, live: tuple[int, ...]) -> tuple[int, ...]:
        """Which servers of a stage may execute the micro-batches of a home, by their pipelines.

        Args:
            home: the pipeline that the micro-batches belong to.
            live: the pipelines whose server of the stage is alive, rising.
        """
        return (home,) if self.keeps_home and home in live else live
