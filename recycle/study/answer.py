"""What a study answers: one sentence, and the tables that it follows from."""

import re
from collections.abc import Callable, Mapping

import msgspec

from recycle.errors import UserError
from recycle.study.buckets import Bucket
from recycle.study.choices import SHAPE, SPARE, Choice, weigh_choices
from recycle.study.compare import PolicyComparison, StudySetting, compare
from recycle.study.constants import SOURCES
from recycle.study.policies.rerouting import Rerouting
from recycle.study.rates import Rates

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


class UsedConstant(msgspec.Struct, frozen=True):
    """A constant of the models.

    Attributes:
        name: by which it is set.
        typical: its value; None for one that is computed from others.
        low: the least of the values that intervals are over.
        high: the greatest.
        source: what it is, with year and hardware; ``given`` if it was given.
    """

    name: str
    typical: float | None
    low: float | None
    high: float | None
    source: str


class PlannedThroughput(msgspec.Struct, frozen=True):
    """A throughput that the study is built on.

    Attributes:
        dead: which servers are dead, in words.
        throughput: of re-routing, as a share of fault-free 1F1B.
        basis: the plan or the bound that it follows from.
    """

    dead: str
    throughput: float
    basis: str


class StudyAnswer(msgspec.Struct, frozen=True):
    """A study's answer.

    Attributes:
        setting: what was asked.
        bill: how hours are counted.
        policies: compared over the same samples.
        choices: of the job, with what they are worth; empty if they were not asked for.
        constants: of the models.
        throughput: of re-routing with a dead server in each stage.
    """

    setting: StudySetting
    bill: Bill
    policies: tuple[PolicyComparison, ...]
    choices: tuple[Choice, ...]
    constants: tuple[UsedConstant, ...]
    throughput: tuple[PlannedThroughput, ...]

    @property
    def sentence(self) -> str:
        """The answer in words."""
        best = next((each for each in self.policies if each.policy == Rerouting.name), self.policies[0])
        text = (
            f"{best.policy} keeps {best.goodput:.2%} ({best.low:.2%} to {best.high:.2%}) of the training that is paid "
            f"for and loses {self.bill.text(best.lost)} a year"
        )
        restarts = next((each for each in self.policies if each.policy == "checkpoints" and each is not best), None)
        if restarts is not None:
            text += f", restarts from checkpoints lose {self.bill.text(restarts.lost)}"
        return text + (f"; {self._spares()}; {self._shape()}." if self.choices else ".")

    def _spares(self) -> str:
        spares = max((each for each in self.choices if each.topic == SPARE), key=lambda each: each.saved)
        if spares.is_present:
            return "no spare server pays off"
        if spares.choice == "1":
            return f"1 spare server pays off and saves {self.bill.text(spares.saved)}"
        return f"{spares.choice} spare servers pay off and save {self.bill.text(spares.saved)}"

    def _shape(self) -> str:
        best = max((each for each in self.choices if each.topic == SHAPE), key=lambda each: each.saved)
        if best.is_present or best.saved <= 0:
            return "no other shape that was tried loses less"
        return f"{best.choice} on these servers would save {self.bill.hours(best.saved):,.0f} {self.bill.unit}"

    def policy_table(self) -> list[list[str]]:
        """Each policy with what it keeps and loses, below a header in which columns of numbers begin with a star."""
        bill = self.bill
        losses = [f"*{bill.unit} lost a year", "*low", "*high", *(["*money", "*low", "*high"] if bill.price else [])]
        rows = [["policy", "*goodput", "*low", "*high", "*servers", *losses, "most of it"]]
        for each in self.policies:
            lost = (each.lost, each.lost_with(each.high), each.lost_with(each.low))
            shares = sorted(((share, bucket.value) for bucket, share in each.shares.items()), reverse=True)
            rows.append(
                [
                    each.policy,
                    *(f"{goodput:.4f}" for goodput in (each.goodput, each.low, each.high)),
                    str(each.paid),
                    *(f"{bill.hours(hours):,.0f}" for hours in lost),
                    *(f"{bill.money(hours):,.0f}" for hours in lost if bill.price),
                    ", ".join([f"{name} {share:.1%}" for share, name in shares if name != "useful"][:2]),
                ]
            )
        return rows

    def choice_table(self) -> list[list[str]]:
        """Each choice with what it loses and saves, in the same form."""
        bill = self.bill
        rows = [["by recycle", "choice", "*goodput", f"*{bill.unit} lost a year", "*saved a year", ""]]
        for each in self.choices:
            saved = "" if each.is_present else f"{bill.hours(each.saved):+,.0f}"
            remark = "as it is" if each.is_present else ""
            lost = f"{bill.hours(each.lost):,.0f}"
            rows.append([each.topic, each.choice, f"{each.goodput:.4f}", lost, saved, remark])
        return rows

    def as_json(self) -> Mapping[str, object]:
        """What scripts read."""
        return {
            "sentence": self.sentence,
            "policies": [self._policy(each) for each in self.policies],
            "choices": self.choices,
            "constants": self.constants,
            "throughput": self.throughput,
            **{f"failures {what}".replace(" ", "_"): n for what, n in self.setting.history.uncounted.items()},
        }

    def _policy(self, each: PolicyComparison) -> Mapping[str, object]:
        losses = {"low": each.lost_with(each.high), "": each.lost, "high": each.lost_with(each.low)}
        named = {f"_{name}" if name else "": lost for name, lost in losses.items()}
        hours = {f"lost_server_hours{name}": lost for name, lost in named.items()}
        gpus = {f"lost_gpu_hours{name}": self.bill.hours(lost) for name, lost in named.items() if self.bill.gpus}
        money = {f"lost_money{name}": self.bill.money(lost) for name, lost in named.items() if self.bill.price}
        return {
            "policy": each.policy,
            "goodput": each.goodput,
            "goodput_low": each.low,
            "goodput_high": each.high,
            "servers": each.paid,
            **hours,
            **gpus,
            **money,
            "failures": each.failures,
            "shares": {bucket.value: each.shares[bucket] for bucket in Bucket},
            "source": each.source,
        }


def answer(
    setting: StudySetting, bill: Bill, advance: Callable[[str], None] = lambda _: None, *, with_choices: bool = True
) -> StudyAnswer:
    """Answer a study.

    Args:
        setting: what is asked.
        bill: how hours are counted.
        advance: told how far it is.
        with_choices: whether it says what the job's choices are worth.
    """
    policies = compare(setting, advance)
    choices = weigh_choices(setting, advance) if with_choices else ()
    return StudyAnswer(setting, bill, policies, choices, used_constants(setting), planned_throughput(setting))


def used_constants(setting: StudySetting) -> tuple[UsedConstant, ...]:
    """Every constant of the models with its values, and where it is from."""
    sets = setting.sets
    found = []
    for name, typical in sets[-1].items().items():
        values = [value for each in sets if (value := each.items()[name]) is not None]
        source = "given" if name in setting.given else SOURCES[name]
        found.append(UsedConstant(name, typical, min(values, default=None), max(values, default=None), source))
    return tuple(found)


def planned_throughput(setting: StudySetting) -> tuple[PlannedThroughput, ...]:
    """The throughput of re-routing with no dead server, and with one in each stage."""
    job = setting.ground.job
    rates = Rates(job, setting.ground.layers)
    cases = {"no server": (0,) * job.depth}
    if job.pipelines > 1:
        cases |= {
            f"one of stage {stage}": tuple(int(each == stage) for each in range(job.depth))
            for stage in range(job.depth)
        }
    return tuple(PlannedThroughput(name, rates.rerouted(counts), rates.basis(counts)) for name, counts in cases.items())
