import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrain.engine.counters import LossScale


@settings(max_examples=6, deadline=None)
@given(st.lists(st.integers(1, 4_500), min_size=1, max_size=4), st.sampled_from([1.0, 4.0, 2.0**16]))
def test_it_does_what_the_grad_scaler_of_torch_does_down_to_one(good_steps, first):
    ours = LossScale(is_on=True, value=first)
    theirs, tracker = torch.tensor(first), torch.tensor(0, dtype=torch.int32)
    for count in good_steps:
        for overflowed in [False] * count + [True]:
            ours.update(torch.tensor(overflowed))
            torch._amp_update_scale_(theirs, tracker, torch.tensor(float(overflowed)), 2.0, 0.5, 2_000)
            theirs.clamp_(min=1.0)
        assert ours.state() == (float(theirs), int(tracker))


def test_it_goes_on_where_it_was():
    whole, first = LossScale(is_on=True, value=8.0), LossScale(is_on=True, value=8.0)
    for number in range(2_500):
        whole.update(torch.tensor(number == 300))
        if number < 1_000:
            first.update(torch.tensor(number == 300))
    value, steps = first.state()
    second = LossScale(is_on=True, value=value, steps_since_overflow=steps)
    for _ in range(1_500):
        second.update(torch.tensor(False))
    assert second.state() == whole.state() == (8.0, 199)


def test_where_it_is_off_it_stays_one():
    scale = LossScale(is_on=False, value=8.0)
    scale.update(torch.tensor(True))
    assert scale.state()[0] == 1.0
