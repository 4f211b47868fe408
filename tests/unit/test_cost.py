import json
from datetime import date
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunesmith.cost import Cost, CostLine, RateCard, load_card, price, total
from tunesmith.resources import Footprint, Resources

PLAIN = Footprint(cpu=Decimal(2), memory_gib=Decimal(4))
WITH_GPU = Footprint(cpu=Decimal(8), memory_gib=Decimal(32), gpus=2, gpu="NVIDIA-L4", replicas=3)


def card_file(tmp_path, *rates, currency="USD"):
    path = tmp_path / "rates.json"
    path.write_text(json.dumps({"name": "mine", "currency": currency, "rates": list(rates)}))
    return path


def rate(resource, price, unit, **more):
    return {"resource": resource, "price": price, "unit": unit, "source": "contract", "retrieved": "2026-11-01"} | more


def test_an_hour_costs_cores_and_gib_times_their_rates():
    assert price(PLAIN, 3600).amount == 2 * Decimal("0.031611") + 4 * Decimal("0.004237")


def test_replicas_and_gpus_multiply(tmp_path):
    card = load_card(card_file(tmp_path, rate("cpu", "0.1", "core-hour"), rate("memory", "0.01", "GiB-hour"),
                               rate("NVIDIA-L4", "0.7", "GPU-hour")))  # fmt: skip
    assert price(WITH_GPU, 1800, card).amount == Decimal("1.2") + Decimal("0.48") + Decimal("2.1")


def test_a_gpu_without_a_rate_makes_the_price_unknown_and_never_zero():
    cost = price(WITH_GPU, 3600)
    assert cost.amount is None
    assert cost.unknown == ("no rate for NVIDIA-L4",)
    assert cost.known_amount == 24 * Decimal("0.031611") + 96 * Decimal("0.004237")
    assert cost.show() == "unknown (no rate for NVIDIA-L4; known part $1.17)"


def test_a_gpu_without_a_name_is_unknown_too():
    assert price(Footprint.of(Resources(gpus=1)), 60).amount is None


def test_a_step_that_never_started_costs_nothing_even_on_a_gpu_without_a_rate():
    assert price(WITH_GPU, 0).amount == 0


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), 1e300])
def test_seconds_that_are_no_duration_are_refused(seconds):
    with pytest.raises(ValueError, match="cannot be priced"):
        price(PLAIN, seconds)


def test_an_unknown_tier_is_refused():
    with pytest.raises(ValueError, match="billing, allocation, derived, estimate"):
        price(PLAIN, 1, tier="guess")


def test_each_line_says_where_and_when_its_rate_was_read():
    for line in price(PLAIN, 60).lines:
        assert "OpenCost" in line.source
        assert line.date == "2026-11-30"
    assert price(PLAIN, 60).card_digest == load_card().digest


def test_a_sum_with_an_unknown_part_is_unknown_and_shows_the_known_part():
    cost = total([price(PLAIN, 3600), price(WITH_GPU, 3600)])
    assert cost.amount is None
    assert cost.known_amount == 26 * Decimal("0.031611") + 100 * Decimal("0.004237")
    assert cost.unknown == ("no rate for NVIDIA-L4",)


def test_lines_of_a_sum_are_merged_so_that_it_stays_small():
    cost = total([price(PLAIN, 60)] * 50)
    assert len(cost.lines) == 2
    assert cost.amount == sum(line.amount for line in cost.lines)


def test_a_sum_over_tiers_says_that_they_are_mixed():
    assert total([price(PLAIN, 1), price(PLAIN, 1, tier="billing")]).tier == "mixed"


def test_currencies_are_not_added():
    with pytest.raises(ValueError, match="EUR and USD"):
        total([Cost(Decimal(1), "USD"), Cost(Decimal(1), "EUR")])


@given(
    cores=st.decimals(0, 512, places=3),
    gib=st.decimals(0, 4096, places=3),
    gpus=st.integers(0, 8),
    replicas=st.integers(1, 64),
    seconds=st.floats(0, 1e9),
)
def test_a_cost_survives_json_and_its_amount_is_the_sum_of_its_lines(cores, gib, gpus, replicas, seconds):
    cost = price(Footprint(cores, gib, gpus, "NVIDIA-H100", replicas), seconds)
    assert Cost.from_json(json.loads(json.dumps(cost.to_json()))) == cost
    assert cost.amount is None or cost.amount == cost.known_amount


@pytest.mark.parametrize(
    "change",
    [
        {"amount": "much"},
        {"amount": "NaN"},
        {"amount": "1e999999999"},
        {"lines": [{"resource": "cpu"}]},
        {"lines": 3},
        {"unknown": None},
    ],
)
def test_what_is_no_cost_is_refused(change):
    with pytest.raises(ValueError, match="not a cost"):
        Cost.from_json(price(PLAIN, 60).to_json() | change)
    with pytest.raises(ValueError, match="not a cost"):
        Cost.from_json({})


def test_amounts_are_shown_with_the_digits_that_matter():
    assert price(PLAIN, 94).show() == "$0.0021"
    assert Cost(Decimal("0.000001")).show() == "<$0.0001"
    assert Cost(Decimal("12.345")).show() == "$12.34"
    assert Cost(Decimal("3"), "CHF").show() == "CHF 3.00"


def test_the_bundled_card_names_no_gpu_price():
    card = load_card()
    assert {rate.resource for rate in card.rates} == {"cpu", "memory"}
    assert card.currency == "USD"


def test_a_card_is_stale_after_thirty_days():
    card = load_card()
    assert card.age_days(date(2026, 12, 30)) == 30
    assert not card.is_stale(date(2026, 12, 30))
    assert card.is_stale(date(2026, 12, 31))


def test_the_digest_of_a_card_changes_with_a_price(tmp_path):
    cheap = load_card(card_file(tmp_path, rate("cpu", "0.1", "core-hour")))
    dear = load_card(card_file(tmp_path, rate("cpu", "0.2", "core-hour")))
    assert cheap.digest != dear.digest
    assert cheap.digest == RateCard.model_validate_json(cheap.model_dump_json()).digest


@pytest.mark.parametrize(
    ("rates", "message"),
    [
        ([rate("cpu", "-1", "core-hour")], "rates.0.price"),
        ([rate("cpu", "Infinity", "core-hour")], "rates.0.price"),
        ([rate("cpu", "1", "core-hour", colour="red")], "rates.0.colour"),
        ([rate("cpu", "1", "core-hour"), rate("cpu", "2", "core-hour")], "more than one rate for cpu"),
        ([rate("memory", "1", "core-hour")], "memory is priced by GiB-hour, not by core-hour"),
    ],
)
def test_a_wrong_card_is_refused_with_the_field(tmp_path, rates, message):
    with pytest.raises(ValueError, match=message):
        load_card(card_file(tmp_path, *rates))


def test_a_file_that_is_no_json_is_refused(tmp_path):
    (tmp_path / "rates.json").write_text("cpu: 1")
    with pytest.raises(ValueError, match="not a rate card: the file"):
        load_card(tmp_path / "rates.json")


def test_a_line_without_a_rate_has_no_amount():
    assert CostLine("NVIDIA-L4", Decimal(1), "GPU-hour").amount is None
