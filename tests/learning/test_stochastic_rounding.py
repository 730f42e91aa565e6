"""Values of 8 and 4 bits: by an independent loop, without bias, within the error bound, on every device."""

import numpy as np
import pytest
import torch

from fedgap.learning.codec import decode, encode
from fedgap.learning.masks import mask, ranks
from fedgap.learning.stochastic_rounding import arriving, rounded, upload_keys
from fedgap.upload_size import BLOCK, HEADER_BYTES, UPLOAD_BITS, bits_per_value, upload_bytes

DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device"))])
SMALL = pytest.mark.parametrize(("bits", "largest"), [(8, 127), (4, 7)])


def gradients(clients: int, size: int, ratios: list[float]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Masked gradients of very different magnitudes, their nested masks, and the clients' keys."""
    generator = torch.Generator().manual_seed(clients)
    ranking = ranks(torch.rand(size, generator=generator))
    masks = torch.stack([mask(ranking, ratio) for ratio in ratios])
    values = torch.randn(clients, size, generator=generator) * torch.logspace(-6, 2, size)
    keys = torch.from_numpy(upload_keys(11, clients).view(np.int64))
    return values * masks, masks, keys


def hashed(key: int, number: int, counter: int) -> int:
    """The hash in whole numbers modulo 2^64."""
    def mixed(z: int) -> int:
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return z ^ (z >> 31)

    start = mixed((key + 0x9E3779B97F4A7C15 * (number + 1)) % 2**64)
    return mixed((start + 0xD1B54A32D192ED03 * (counter + 1)) % 2**64)


@SMALL
def test_rounding_by_a_loop_over_the_kept_values(bits, largest):
    (values,), (keep,), (key,) = gradients(1, 700, [0.2])
    expected, positions = np.zeros(700, dtype=np.float32), np.flatnonzero(keep.numpy())
    for start in range(0, len(positions), BLOCK):
        block = positions[start:start + BLOCK]
        scale = np.abs(values.numpy()[block]).max() / np.float32(largest)
        for m in block:
            multiple = min(max(values.numpy()[m] / scale, np.float32(-largest)), np.float32(largest))
            half = hashed(int(key), 5, int(m) // 2) >> 32 * (int(m) % 2) & 0xFFFFFFFF  # two parameters share a hash
            chance = (int(half) >> 8) * 2.0**-24
            expected[m] = np.float32(np.floor(multiple) + (chance < multiple - np.floor(multiple))) * scale
    assert torch.equal(arriving(values, keep, key, 5, bits), torch.from_numpy(expected))


@SMALL
def test_no_bias_and_an_error_below_the_scale(bits, largest):
    (values,), (keep,), _ = gradients(1, 600, [0.3])
    repeats = 8_000
    keys = torch.arange(repeats) * 0x5851F42D4C957F2D  # as if that many clients had this gradient
    total, squares = torch.zeros(600, dtype=torch.float64), torch.zeros(600, dtype=torch.float64)
    _, scales = rounded(values, keep, keys[0], 0, bits)
    scale = scales[((keep.cumsum(0) - 1).clamp(min=0) // BLOCK)].double()
    for some in keys.split(2000):
        error = arriving(values.expand(2000, -1), keep.expand(2000, -1), some, 3, bits).double() - values
        assert not error[:, ~keep].any()
        assert (error.abs() <= scale * (1 + 1e-6)).all()
        total += error.sum(0)
        squares += error.square().sum(0)
    multiple = values.double() / scale
    fraction = multiple - multiple.floor()
    variance = scale.square() * fraction * (1 - fraction)
    spread = keep & (variance > 1e-3 * scale.square())
    standard = total[spread] / (repeats * variance[spread]).sqrt()  # standard normal if there is no bias
    assert standard.abs().max() < 5
    assert 0.8 < standard.square().mean() < 1.25
    assert abs(standard.mean()) < 5 / standard.numel() ** 0.5
    frequent = keep & (variance > 0.1 * scale.square())
    assert ((squares[frequent] / repeats / variance[frequent] - 1).abs() < 0.15).all()
    certain = keep & ~spread
    assert (total[certain].abs() / repeats <= 0.003 * scale[certain]).all()


@DEVICES
@pytest.mark.parametrize("bits", UPLOAD_BITS)
def test_the_simulator_gets_what_arrives_over_the_wire(bits, device):
    ratios = [0.0, 0.25, 0.5, 0.999, 1.0]
    values, masks, keys = gradients(5, 2000, ratios)
    simulated = arriving(values.to(device), masks.to(device), keys.to(device), 9, bits).cpu()
    for n, key in enumerate(upload_keys(11, 5)):
        data = encode(values[n], masks[n], round=9, plan="p", bits=bits, key=int(key))
        kept = int(masks[n].sum())
        assert len(data) == upload_bytes(kept, bits)
        upload = decode(data, size=2000, round=9, plan="p", mask=masks[n], bits=bits)
        assert torch.equal(upload.gradient, simulated[n])
        assert bits == 32 or torch.equal(upload.gradient.view(torch.int32), simulated[n].view(torch.int32))
    runs = arriving(values.repeat(2, 1, 1), masks.repeat(2, 1, 1), keys.repeat(2, 1), 9, bits)  # stacked over runs
    assert torch.equal(runs[1], simulated)


def test_draws_differ_between_clients_and_rounds_and_repeat_otherwise():
    values, masks, keys = gradients(2, 500, [0.0, 0.0])
    values[1] = values[0]
    first, again, later = (arriving(values, masks, keys, s, 4) for s in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], later[0])


def test_zeros_and_the_largest_value_are_exact():
    values = torch.zeros(2 * BLOCK)
    values[3], values[4] = 1.27, -1.27
    keep, key = torch.ones(2 * BLOCK, dtype=torch.bool), torch.tensor(1)
    assert rounded(values, keep, key, 0, 8)[0][3:5].tolist() == [127, -127]
    back = arriving(values, keep, key, 0, 8)
    assert back[3].item() == pytest.approx(1.27, rel=1e-6)
    assert int(back.count_nonzero()) == 2
    assert not arriving(torch.zeros(5), torch.ones(5, dtype=torch.bool), key, 0, 4).any()


@pytest.mark.parametrize(("bits", "kept", "by_hand"), [
    (32, 0, 37), (32, 1000, 37 + 4000), (8, 0, 37), (8, 1, 37 + 4 + 1), (8, 1000, 37 + 16 + 1000),
    (4, 1, 37 + 4 + 1), (4, 513, 37 + 12 + 257)])
def test_bytes_by_hand(bits, kept, by_hand):
    assert upload_bytes(kept, bits) == by_hand


@pytest.mark.parametrize("bits", UPLOAD_BITS)
def test_bytes_are_within_five_percent_of_the_bits_and_a_constant(bits):
    for kept in (1, 255, 256, 257, 44_426, 658_586):
        plain = bits * kept / 8
        assert plain + HEADER_BYTES <= upload_bytes(kept, bits) <= 1.05 * plain + HEADER_BYTES + 5
        assert abs(upload_bytes(kept, bits) - HEADER_BYTES - bits_per_value(bits) * kept / 8) <= 5
