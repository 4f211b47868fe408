"""What a step costs: dated rate cards, and prices that say where each figure came from. An unknown price is never 0."""

from tunesmith.cost.pricing import MIXED, TIERS, Cost, CostLine, price, show_amount, total
from tunesmith.cost.rates import GPU_UNIT, STALE_AFTER_DAYS, UNITS, Rate, RateCard, load_card

__all__ = [
    "GPU_UNIT",
    "MIXED",
    "STALE_AFTER_DAYS",
    "TIERS",
    "UNITS",
    "Cost",
    "CostLine",
    "Rate",
    "RateCard",
    "load_card",
    "price",
    "show_amount",
    "total",
]
