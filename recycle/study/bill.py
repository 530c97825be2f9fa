"""What lost server-hours are in GPU-hours and in money."""

import re

import msgspec

from recycle.errors import UserError

_PRICE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?/ ?(gpuh|serverh)")


class Bill(msgspec.Struct, frozen=True):
    """How server-hours are counted and paid.

    Attributes:
        gpus: of a server; 0 if hours are those of servers.
        price: of an hour of a server; 0 if there is none.
    """

    gpus: int = 0
    price: float = 0.0

    @classmethod
    def parse(cls, gpus: int | None, price: str | None) -> "Bill":
        """Read the number of GPUs of a server, and a price such as 2.5/gpuh or 20/serverh.

        Raises:
            UserError: the price cannot be read, or is of a GPU and the number of GPUs is not given.
        """
        if price is None:
            return cls(gpus or 0)
        match = _PRICE.fullmatch(price.strip())
        if match is None:
            raise UserError(
                f"price {price}: give it for an hour of a GPU or of a server, such as 2.5/gpuh or 20/serverh"
            )
        if match[2] == "serverh":
            return cls(gpus or 0, float(match[1]))
        if gpus is None:
            raise UserError(f"price {price}: give gpus-per-server too, or the price of a server, such as 20/serverh")
        return cls(gpus, float(match[1]) * gpus)

    @property
    def unit(self) -> str:
        """What hours are of."""
        return "GPU-hours" if self.gpus else "server-hours"

    def hours(self, servers: float) -> float:
        """Server-hours in the unit."""
        return servers * (self.gpus or 1)

    def money(self, servers: float) -> float:
        """What server-hours cost."""
        return servers * self.price

    def text(self, servers: float) -> str:
        """Server-hours in the unit, and what they cost, in words."""
        paid = f" ({self.money(servers):,.0f} in money)" if self.price else ""
        return f"{self.hours(servers):,.0f} {self.unit}{paid}"
