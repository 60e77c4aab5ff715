"""What differs by device, with torch's fake tensors as a stand-in for devices that are not there."""

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from model import BertConfig, BertForPreTraining
from pretrain.build import make_data
from pretrain.engine.batches import Position, moved
from pretrain.engine.device import Precision, fastest_precision, find_device, has_foreach_kernels, pays, steps_behind
from pretrain.engine.distributed import World
from pretrain.engine.optimizer import Optimizer, clip
from pretrain.objectives import make_objective
from pretrain.resolve import resolve
from pretrain.settings import PretrainError, PretrainSettings


@pytest.mark.parametrize("device", ["mps", "cuda"])
@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_clipping_and_the_optimizer_work_on_a_device_that_is_not_here(kind, device):
    """Shapes and devices alone are computed: what a device cannot do at all is refused."""
    model = BertForPreTraining(BertConfig.from_preset("tiny", vocab_size=64, max_position_embeddings=16))
    with FakeTensorMode():
        for module in model.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                setattr(module, name, nn.Parameter(torch.empty(parameter.shape, device=device)))
        for parameter in model.parameters():
            parameter.grad = torch.empty(parameter.shape, device=device)
        optimizer = Optimizer(model, kind, 1e-3, 0.1)
        norm = clip(list(model.parameters()), 1.0, torch.empty((), device=device))
        for part in optimizer.parts:
            part.found_inf = torch.empty((), device=device)
            part.step()
    assert norm.device.type == device and norm.shape == ()
    state = optimizer.state_tensors()
    assert len(state) > len(list(model.parameters()))
    assert {tensor.device.type for tensor in state.values()} == {device}


def test_kernels_for_lists_are_where_torch_has_them():
    from torch.utils._foreach_utils import _device_has_foreach_support

    for device in ("cpu", "cuda", "mps"):
        assert has_foreach_kernels(torch.device(device)) == _device_has_foreach_support(torch.device(device))


@pytest.mark.parametrize(("bf16", "expected"), [(True, "bf16"), (False, "fp16")])
def test_a_gpu_without_bf16_computes_in_fp16(bf16, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: bf16)
    assert fastest_precision("cuda") == expected
    assert pays("fp16", "cuda") and pays("bf16", "cuda") == bf16
    assert not pays("fp16", "cpu") and all(pays("fp32", device) for device in ("cpu", "cuda", "mps"))


def test_the_optimizer_computes_in_fp16_on_a_gpu_alone():
    found = {(device, name): Precision(device, name).optimizer_dtype
             for device in ("cpu", "cuda") for name in ("bf16", "fp16", "fp32")}  # fmt: skip
    assert found.pop(("cpu", "fp16")) == torch.float32
    assert all(found[device, name] == {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[name]
               for device, name in found)  # fmt: skip


@pytest.mark.parametrize(("name", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_products_are_computed_in_the_precision(name, dtype):
    with Precision("cpu", name)():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype
    with Precision("cpu", "fp32")():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32


@pytest.mark.parametrize("own", [0, 1])
def test_the_gpu_of_the_process_is_found_by_its_own_names_alone(own, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: own)
    for wanted in (f"cuda:{1 - own}", "gpu", torch.device("cuda", 1 - own)):
        with pytest.raises(PretrainError, match="is not available on this machine: use one of cpu, cuda"):
            find_device(wanted)
    assert {find_device(wanted) for wanted in ("auto", f"cuda:{own}", torch.device("cuda"))} == {"cuda"}


def test_a_gpu_is_read_a_step_later_than_the_others():
    assert [steps_behind(torch.device(name)) for name in ("cpu", "mps", "cuda")] == [0, 0, 1]


def test_a_batch_stays_where_it_is_needed(prepared):
    settings = PretrainSettings(prepared=str(prepared.folder), preset="tiny", device="cpu", budget="5steps")
    objective = make_objective(settings, prepared)
    stream, maker, _ = make_data(resolve(settings), prepared, objective, World())
    examples, _ = next(stream.batches(4, Position()))
    batch = maker.packed(examples)
    assert moved(batch, torch.device("cpu")).input_ids is batch.input_ids
