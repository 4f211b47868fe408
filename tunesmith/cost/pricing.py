"""What a step costs: its footprint, times the hours it ran, times dated rates.

    amount   = sum over resources of quantity * rate
    quantity = amount of the resource in one replica * replicas * hours

This is the request-based allocation of OpenCost (https://opencost.io/docs/specification), without idle capacity,
storage and network. Queue time is not in it: give the seconds from start to end of running, over all attempts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Context, Decimal, InvalidOperation
from typing import Any, Self

from tunesmith.cost.rates import GPU_UNIT, UNITS, RateCard, load_card
from tunesmith.resources import Footprint

# From the best figure to the weakest; an estimate is made before the run.
TIERS = ("billing", "allocation", "derived", "estimate")
MIXED = "mixed"

_HOUR = Decimal(3600)
# Quantities are kept to a billionth of a unit, so that records stay small; amounts are exact products of what is kept.
_PLACES = Decimal("1e-9")
_EXACT = Context(prec=100)
# Beyond any run, and small enough to be written out in full: "1e999999999" in a file is refused, not printed.
_LONGEST = 1e12
_LARGEST_EXPONENT = 40


@dataclass(frozen=True)
class CostLine:
    """One resource's share: ``quantity`` in ``unit`` (core-hour, GiB-hour, GPU-hour), ``rate`` None where unknown.

    ``source`` and ``date`` (ISO 8601) say where and when the rate was read.
    """

    resource: str
    quantity: Decimal
    unit: str
    rate: Decimal | None = None
    source: str = ""
    date: str = ""

    @property
    def amount(self) -> Decimal | None:
        """Quantity times rate, or None."""
        return None if self.rate is None else _EXACT.multiply(self.quantity, self.rate)


@dataclass(frozen=True)
class Cost:
    """What something costs, with where each figure came from.

    Attributes:
        amount: in ``currency``, or None if the price of any part is unknown.
        currency: ISO 4217 code.
        tier: where the usage came from: ``billing``, ``allocation``, ``derived`` (run time times rate), ``estimate``,
            or ``mixed`` for a sum over several.
        unknown: why the amount is not known, one reason each.
        lines: the shares it is made of.
        card_digest: digest of the rate card; empty for a sum over several cards.
    """

    amount: Decimal | None
    currency: str = "USD"
    tier: str = "derived"
    unknown: tuple[str, ...] = ()
    lines: tuple[CostLine, ...] = ()
    card_digest: str = ""

    @property
    def known_amount(self) -> Decimal:
        """The sum of the lines whose rate is known."""
        return _sum(line.amount for line in self.lines if line.amount is not None)

    def show(self) -> str:
        """For people.

        >>> Cost(Decimal("0.00208")).show(), Cost(Decimal("1234.5"), "EUR").show(), Cost(Decimal(0)).show()
        ('$0.0021', 'EUR 1,234.50', '$0.00')
        >>> Cost(None, unknown=("no rate for nvidia.com/gpu",)).show()
        'unknown (no rate for nvidia.com/gpu)'
        """
        if self.amount is not None:
            return show_amount(self.amount, self.currency)
        reasons = list(self.unknown)
        if self.known_amount:
            reasons.append(f"known part {show_amount(self.known_amount, self.currency)}")
        return f"unknown ({'; '.join(reasons)})" if reasons else "unknown"

    def to_json(self) -> dict[str, Any]:
        """As plain JSON; decimals as text, so that nothing is rounded."""
        return {
            "amount": _text(self.amount),
            "currency": self.currency,
            "tier": self.tier,
            "unknown": list(self.unknown),
            "lines": [
                {
                    "resource": line.resource,
                    "quantity": _text(line.quantity),
                    "unit": line.unit,
                    "rate": _text(line.rate),
                    "source": line.source,
                    "date": line.date,
                }
                for line in self.lines
            ],
            "card_digest": self.card_digest,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read back what `to_json` gave.

        Raises:
            ValueError: it is something else.
        """
        try:
            lines = tuple(
                CostLine(
                    str(line["resource"]),
                    _finite(line["quantity"]),
                    str(line["unit"]),
                    None if line["rate"] is None else _finite(line["rate"]),
                    str(line["source"]),
                    str(line["date"]),
                )
                for line in data["lines"]
            )
            return cls(
                None if data["amount"] is None else _finite(data["amount"]),
                str(data["currency"]),
                str(data["tier"]),
                tuple(str(reason) for reason in data["unknown"]),
                lines,
                str(data["card_digest"]),
            )
        except (KeyError, TypeError, AttributeError, InvalidOperation) as error:
            raise ValueError(f"not a cost: {type(error).__name__}: {error}") from None


def price(footprint: Footprint, seconds: float, card: RateCard | None = None, *, tier: str = "derived") -> Cost:
    """What a footprint costs for so many seconds of running.

    >>> str(price(Footprint(cpu=Decimal(2), memory_gib=Decimal(4)), 3600).amount)  # 2 * 0.031611 + 4 * 0.004237
    '0.080170000000000'
    >>> price(Footprint(Decimal(8), Decimal(32), gpus=1, gpu="nvidia.com/gpu"), 3600).show()
    'unknown (no rate for nvidia.com/gpu; known part $0.3885)'
    >>> price(Footprint(Decimal(8), Decimal(32), gpus=1, gpu="nvidia.com/gpu"), 0).show()
    '$0.00'

    Args:
        footprint: cores, GiB and GPUs of one replica, and the replicas.
        seconds: how long they ran, queue time excluded; below 1e12.
        card: the rates; the bundled card without one.
        tier: where the seconds came from, one of `TIERS`.

    Raises:
        ValueError: the seconds are negative, or not a number of them, or the tier is none of ours.
    """
    if not 0 <= seconds < _LONGEST:  # refuses what is not a number, too
        raise ValueError(f"{seconds} seconds cannot be priced: give the time from start to end of running, 0 or more")
    if tier not in TIERS:
        raise ValueError(f"{tier!r} is not a tier: write one of {', '.join(TIERS)}")
    card = card or load_card()
    wanted = [
        ("cpu", footprint.cpu, UNITS["cpu"]),
        ("memory", footprint.memory_gib, UNITS["memory"]),
        (footprint.gpu or "GPU", Decimal(footprint.gpus), GPU_UNIT),
    ]
    lines = tuple(_line(card, name, each * footprint.replicas, unit, seconds) for name, each, unit in wanted if each)
    # What did not run costs nothing, whatever its rate.
    unknown = tuple(f"no rate for {line.resource}" for line in lines if line.rate is None and line.quantity)
    amount = None if unknown else _sum(line.amount for line in lines if line.amount is not None)
    return Cost(amount, card.currency, tier, unknown, lines, card.digest)


def total(costs: Iterable[Cost]) -> Cost:
    """The sum. One unknown part makes it unknown; `Cost.known_amount` then is the sum of the rest.

    >>> total([Cost(Decimal("0.50")), Cost(Decimal("0.25"))]).show(), total([]).show()
    ('$0.7500', '$0.00')

    Raises:
        ValueError: the costs are in different currencies.
    """
    costs = list(costs)
    if not costs:
        return Cost(Decimal(0))
    currencies = sorted({cost.currency for cost in costs})
    if len(currencies) > 1:
        raise ValueError(f"amounts in {' and '.join(currencies)} cannot be added: price all steps with one rate card")
    unknown = tuple(dict.fromkeys(reason for cost in costs for reason in cost.unknown))
    amounts = [cost.amount for cost in costs if cost.amount is not None]
    tiers, cards = {cost.tier for cost in costs}, {cost.card_digest for cost in costs}
    return Cost(
        amount=_sum(amounts) if len(amounts) == len(costs) else None,
        currency=currencies[0],
        tier=tiers.pop() if len(tiers) == 1 else MIXED,
        unknown=unknown,
        lines=_merged(line for cost in costs for line in cost.lines),
        card_digest=cards.pop() if len(cards) == 1 else "",
    )


def show_amount(amount: Decimal, currency: str) -> str:
    """An amount for people: four decimals below one, else two.

    >>> show_amount(Decimal("0.00001"), "USD")
    '<$0.0001'
    """
    sign = "$" if currency == "USD" else f"{currency} "
    if 0 < amount < Decimal("0.0001"):
        return f"<{sign}0.0001"
    return f"{sign}{amount:,.4f}" if 0 < amount < 1 else f"{sign}{amount:,.2f}"


def _line(card: RateCard, resource: str, quantity: Decimal, unit: str, seconds: float) -> CostLine:
    hours = _EXACT.divide(_EXACT.multiply(quantity, Decimal(str(seconds))), _HOUR)
    hours = hours.quantize(_PLACES, context=_EXACT)
    rate = card.rate(resource)
    if rate is None:
        return CostLine(resource, hours, unit)
    return CostLine(resource, hours, unit, rate.price, rate.source, rate.retrieved.isoformat())


def _merged(lines: Iterable[CostLine]) -> tuple[CostLine, ...]:
    """Lines of the same resource at the same rate as one."""
    quantities: dict[tuple[str, str, Decimal | None, str, str], Decimal] = {}
    for line in lines:
        key = (line.resource, line.unit, line.rate, line.source, line.date)
        quantities[key] = _EXACT.add(quantities.get(key, Decimal(0)), line.quantity)
    return tuple(CostLine(name, amount, unit, *rest) for (name, unit, *rest), amount in quantities.items())  # type: ignore[arg-type]


def _sum(amounts: Iterable[Decimal]) -> Decimal:
    result = Decimal(0)
    for amount in amounts:
        result = _EXACT.add(result, amount)
    return result


def _text(value: Decimal | None) -> str | None:
    return None if value is None else f"{value.normalize(_EXACT):f}"


def _finite(value: object) -> Decimal:
    number = Decimal(str(value))
    if not number.is_finite() or abs(number.adjusted()) > _LARGEST_EXPONENT or len(str(value)) > 100:
        raise ValueError(f"not a cost: {str(value)[:40]!r} is not an amount or a quantity")
    return number
