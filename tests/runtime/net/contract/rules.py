"""The rules of docs/internals/transports.md, each as what some ranks do. They are numbered there as here."""

from tests.runtime.net.contract import carrying, ending, giving_up, late, sharing, views
from tests.runtime.net.contract.writing import NumberedRule

RULES: dict[str, NumberedRule] = (
    carrying.RULES | giving_up.RULES | views.RULES | ending.RULES | sharing.RULES | late.RULES
)
"""By their names."""
