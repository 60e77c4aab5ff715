import pytest

from pretrain.engine.settings import Budget, PretrainError


@pytest.mark.parametrize(
    ("text", "amount", "unit"),
    [
        ("30m", 1800, "seconds"),
        ("2h", 7200, "seconds"),
        ("1.5h", 5400, "seconds"),
        ("90s", 90, "seconds"),
        ("2d", 172_800, "seconds"),
        ("5000steps", 5000, "steps"),
        ("1step", 1, "steps"),
        ("5ksteps", 5000, "steps"),
        ("3epochs", 3, "epochs"),
        ("0.5epochs", 0.5, "epochs"),
        ("1Btokens", 1e9, "tokens"),
        ("20 M tokens", 2e7, "tokens"),
    ],
)
def test_budgets_are_read(text, amount, unit):
    assert Budget.parse(text) == Budget(amount, unit)


@pytest.mark.parametrize("text", ["", "30", "m", "30 parsecs", "-3steps", "0steps", "1e3steps", "steps"])
def test_what_is_no_budget_is_refused_with_the_forms(text):
    with pytest.raises(PretrainError, match="--budget.*(30m, 2h, 5000steps|positive)"):
        Budget.parse(text)


def test_only_its_own_unit_is_counted_and_at_most_all():
    used = {"seconds": 10.0, "steps": 20, "epochs": 0.5, "tokens": 4000}
    assert Budget.parse("40s").used(**used) == 10
    assert Budget.parse("80steps").used(**used) == 20
    assert Budget.parse("2epochs").used(**used) == 0.5
    assert Budget.parse("16ktokens").used(**used) == 4000
    assert Budget.parse("1tokens").used(**used) == 1
