"""One client of the paper's MNIST column, worked out on paper.

Table I, first client: H = 1,421,632 bit (LeNet-5's 44,426 parameters × 32), e = 1.8·10⁶ FLOP, c = 10⁵ Hz,
U₀ = 3.98·10⁻²¹ W/Hz, f^max = 5·10⁸ Hz, p^max = 0.5 W, q = 4, κ = 1, ϖ = 0.88·10⁻²⁷ F. Section V: p̂ = 0.5 W and a mean
path loss of 10⁻⁵. Ours: Z = 32, ĉ = 10·c = 10⁶ Hz, ĥ = h. The client runs at its maxima and prunes λ = 0.25.

The numbers below were worked with 60 digits; nothing here calls the code under test to make its own expectation.
"""

from dataclasses import replace
from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgap.system import (
    Fleet,
    broadcast_energy,
    computation_delay,
    computation_energy,
    downlink_rate,
    download_delay,
    round_cost,
    uplink_rate,
    upload_delay,
    upload_energy,
)
from tests.system.strategies import checked, decisions, fleets

TO_12_DIGITS = {"rel": 1e-12, "abs": 0.0}


def column(value: float) -> np.ndarray:
    return np.array([value])


CLIENT = Fleet(
    uplink_gain=column(1e-5),
    downlink_gain=column(1e-5),
    bandwidth_hz=column(1e5),
    max_power_w=column(0.5),
    max_frequency_hz=column(5e8),
    flops_per_cycle=column(4.0),
    pue=column(1.0),
    capacitance=column(0.88e-27),
    gradient_bits=column(1_421_632.0),
    uplink_bits=column(1_421_632.0),
    flops_per_sample=column(1.8e6),
    batch_size=column(32.0),
    local_steps=column(1.0),
    max_ratio=column(0.5),
    downlink_noise_psd_w_hz=column(3.98e-21),
    server_power_w=np.array(0.5),
    server_bandwidth_hz=np.array(1e6),
    uplink_noise_psd_w_hz=np.array(3.98e-21),
)
RATIO, POWER, FREQUENCY = column(0.25), column(0.5), column(5e8)


def test_uplink_rate() -> None:
    # SNR = p·h/(c·U₀) = 0.5·10⁻⁵/(10⁵·3.98·10⁻²¹) = 5·10⁻⁶/3.98·10⁻¹⁶ = 1.256 281 407 035 175 88·10¹⁰
    # log₂(1 + SNR) = 33.548 440 613 106 900 209;  r = 10⁵ × that
    rate = uplink_rate(POWER, CLIENT.uplink_gain, CLIENT.bandwidth_hz, CLIENT.uplink_noise_psd_w_hz)
    assert rate.item() == pytest.approx(3_354_844.061_310_690_020_9, **TO_12_DIGITS)


def test_downlink_rate() -> None:
    # Ten times the band, a tenth of the SNR: 1.256…·10⁹; log₂(1 + SNR) = 30.226 512 519 253 084 588;  r̂ = 10⁶ × that
    rate = downlink_rate(
        CLIENT.server_power_w, CLIENT.downlink_gain, CLIENT.server_bandwidth_hz, CLIENT.downlink_noise_psd_w_hz
    )
    assert rate.item() == pytest.approx(30_226_512.519_253_084_588, **TO_12_DIGITS)


def test_delay() -> None:
    # τ = 0.75·32·1.8·10⁶/(5·10⁸·4) = 4.32·10⁷/2·10⁹ = 0.0216 s
    assert computation_delay(CLIENT, RATIO, FREQUENCY).item() == pytest.approx(0.0216, **TO_12_DIGITS)
    # 0.75·1,421,632/3,354,844.061… = 1,066,224/3,354,844.061… s
    assert upload_delay(CLIENT, RATIO, POWER).item() == pytest.approx(0.317_816_262_250_782_945_96, **TO_12_DIGITS)
    # 1,421,632/30,226,512.519… s, unpruned
    assert download_delay(CLIENT).item() == pytest.approx(0.047_032_617_444_519_179_576, **TO_12_DIGITS)


def test_energy() -> None:
    # Ẽ = 0.75·1·0.88·10⁻²⁷·(5·10⁸)²·32·1.8·10⁶/4 = 0.75·(0.88·10⁻²⁷·2.5·10¹⁷ = 2.2·10⁻¹⁰)·1.44·10⁷ = 0.002376 J
    assert computation_energy(CLIENT, RATIO, FREQUENCY).item() == pytest.approx(0.002_376, **TO_12_DIGITS)
    # Ê = p × the upload's seconds = 0.5·0.317 816 262… J
    assert upload_energy(CLIENT, RATIO, POWER).item() == pytest.approx(0.158_908_131_125_391_472_98, **TO_12_DIGITS)
    # p̂ × the download's seconds = 0.5·0.047 032 617… J
    assert broadcast_energy(CLIENT).item() == pytest.approx(0.023_516_308_722_259_589_788, **TO_12_DIGITS)


def test_round() -> None:
    cost = round_cost(CLIENT, np.array([True]), RATIO, POWER, FREQUENCY)
    # 0.0216 + 0.317 816 262… + 0.047 032 617… s;  0.002376 + 0.158 908 131… + 0.023 516 308… J
    assert cost.delay_s.item() == pytest.approx(0.386_448_879_695_302_125_53, **TO_12_DIGITS)
    assert cost.energy_j.item() == pytest.approx(0.184_800_439_847_651_062_77, **TO_12_DIGITS)
    assert cost.straggler.item() == 0


def test_local_steps_and_small_uploads() -> None:
    # τ = 8 takes eight times the computing: 8·0.0216 s, 8·0.002376 J. Values of 8 bits have 8 + 32/256 = 8.125 bits on
    # the wire: 44,426·8.125 = 360,961.25 bits, 0.253 906 25 of the 32-bit upload. The download stays.
    learner = replace(CLIENT.with_local_steps(8), uplink_bits=column(360_961.25))
    cost = round_cost(learner, np.array([True]), RATIO, POWER, FREQUENCY)
    assert cost.compute_s.item() == pytest.approx(0.1728, **TO_12_DIGITS)
    assert cost.compute_j.item() == pytest.approx(0.019_008, **TO_12_DIGITS)
    assert cost.upload_s.item() == pytest.approx(0.080_695_535_337_112_857_37, **TO_12_DIGITS)
    assert cost.upload_j.item() == pytest.approx(0.040_347_767_668_556_428_69, **TO_12_DIGITS)
    assert cost.download_s.item() == pytest.approx(0.047_032_617_444_519_179_576, **TO_12_DIGITS)
    assert cost.broadcast_j.item() == pytest.approx(0.023_516_308_722_259_589_788, **TO_12_DIGITS)


@checked
@given(st.data())
def test_any_round_equals_a_plain_calculation_in_decimals(data: st.DataObject) -> None:
    fleet = data.draw(fleets())
    selected, ratio, power, frequency = data.draw(decisions(fleet))
    cost = round_cost(fleet, selected, ratio, power, frequency)
    energy, delay = in_decimals(fleet, selected, ratio, power, frequency)
    assert cost.energy_j.item() == pytest.approx(energy, rel=1e-12)
    assert cost.delay_s.item() == pytest.approx(delay, rel=1e-12)


def in_decimals(fleet: Fleet, *decision: np.ndarray) -> tuple[float, float]:
    """The round's energy and delay, client by client, with 60 digits."""
    with localcontext() as context:
        context.prec = 60
        ln2 = Decimal(2).ln()
        energy = slowest = broadcast = Decimal(0)
        server_power, server_band, noise = (
            Decimal(value.item())
            for value in (fleet.server_power_w, fleet.server_bandwidth_hz, fleet.uplink_noise_psd_w_hz)
        )
        for n, chosen in enumerate(decision[0]):
            ratio, power, frequency = (Decimal(value[n].item()) for value in decision[1:])

            def of(field: str, n: int = n) -> Decimal:
                return Decimal(getattr(fleet, field)[n].item())

            snr = server_power * of("downlink_gain") / (server_band * of("downlink_noise_psd_w_hz"))
            download = of("gradient_bits") / (server_band * (1 + snr).ln() / ln2)
            broadcast = max(broadcast, server_power * download)
            if not chosen:
                continue
            band, kept = of("bandwidth_hz"), 1 - ratio
            upload = kept * of("uplink_bits") / (band * (1 + power * of("uplink_gain") / (band * noise)).ln() / ln2)
            cycles = kept * of("local_steps") * of("batch_size") * of("flops_per_sample") / of("flops_per_cycle")
            energy += of("pue") * of("capacitance") * frequency**2 * cycles + power * upload
            slowest = max(slowest, cycles / frequency + upload + download)
        return float(energy + broadcast), float(slowest)
