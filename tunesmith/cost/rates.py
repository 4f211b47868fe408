"""Rate cards: what one unit of a resource costs for an hour, each rate with its source and the day it was read.

The bundled card holds OpenCost's defaults for CPU and memory, which follow Google Cloud's list prices in us-central1.
It holds no GPU: OpenCost's default for one (0.95 USD an hour) names no model, and between a T4 and an H100 lies a
factor of thirty. A GPU's price is therefore unknown until a card names it.
"""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from importlib import resources
from pathlib import Path
from typing import Annotated

import rfc8785
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tunesmith.lineage.digest import digest_text

UNITS = {"cpu": "core-hour", "memory": "GiB-hour"}
GPU_UNIT = "GPU-hour"

# A card older than this deserves a warning: cloud prices change about monthly.
STALE_AFTER_DAYS = 30

_Text = Annotated[str, Field(min_length=1, max_length=200)]


class Rate(BaseModel):
    """The price of one unit of a resource.

    Attributes:
        resource: ``cpu``, ``memory``, or a GPU as footprints name it (``NVIDIA-L4``, or ``nvidia.com/gpu`` for any).
        unit: ``core-hour``, ``GiB-hour`` or ``GPU-hour``.
        price: of one unit, in the card's currency.
        region: where it holds; ``any`` for everywhere.
        capacity: ``on-demand``, ``spot`` or ``reserved``.
        source: where the figure was read.
        retrieved: the day it was read.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    resource: _Text
    unit: Annotated[str, Field(pattern="^(core-hour|GiB-hour|GPU-hour)$")]
    price: Annotated[Decimal, Field(ge=0, allow_inf_nan=False)]
    region: _Text = "any"
    capacity: Annotated[str, Field(pattern="^(on-demand|spot|reserved)$")] = "on-demand"
    source: _Text
    retrieved: date


class RateCard(BaseModel):
    """Rates in one currency (ISO 4217 code). A resource that the card does not name has no known price."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: _Text
    currency: Annotated[str, Field(pattern="^[A-Z]{3}$")] = "USD"
    rates: tuple[Rate, ...]

    def rate(self, resource: str) -> Rate | None:
        """The rate of a resource, or None: unknown, which is not free.

        >>> str(load_card().rate("cpu").price), load_card().rate("NVIDIA-H100")
        ('0.031611', None)
        """
        return next((rate for rate in self.rates if rate.resource == resource), None)

    @property
    def digest(self) -> str:
        """``sha256:<hex>`` of the card's canonical JSON, to be kept beside every amount computed from it."""
        return digest_text(rfc8785.dumps(self.model_dump(mode="json")).decode())

    def age_days(self, today: date) -> int:
        """Days since the oldest rate of the card was read; 0 for a card without rates."""
        return max((today - rate.retrieved for rate in self.rates), default=today - today).days

    def is_stale(self, today: date) -> bool:
        """Whether a rate is old enough to deserve a warning."""
        return self.age_days(today) > STALE_AFTER_DAYS


def load_card(path: Path | str | None = None) -> RateCard:
    """Read a rate card: a JSON file like the bundled ``default_rates.json``, which is read without a path.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: not a rate card, or it names a resource twice or with a unit that is not the resource's.
    """
    file = Path(path) if path is not None else resources.files("tunesmith.cost") / "default_rates.json"
    try:
        card = RateCard.model_validate_json(file.read_text(encoding="utf-8"))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        hint = "write it like default_rates.json"
        raise ValueError(f"{path} is not a rate card: {where}: {first['msg']}; {hint}") from None
    names = [rate.resource for rate in card.rates]
    for rate in card.rates:
        if names.count(rate.resource) > 1:
            raise ValueError(f"{path} has more than one rate for {rate.resource}: keep the one that holds")
        if rate.unit != (unit := UNITS.get(rate.resource, GPU_UNIT)):
            raise ValueError(f"{path}: {rate.resource} is priced by {unit}, not by {rate.unit}")
    return card
