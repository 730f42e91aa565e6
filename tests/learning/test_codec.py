"""The codec: round trips, exact sizes, and what a damaged or foreign upload gives."""

import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedgap.learning import codec
from fedgap.learning.codec import HEADER_BYTES, MaskMismatchError, UploadError, decode, encode, upload_bytes
from fedgap.learning.masks import keep_count, mask, ranks

PLAN = "3f2a"


def masked(size=300, ratio=0.4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    keep = mask(ranks(torch.rand(size, generator=generator)), ratio)
    return torch.randn(size, generator=generator) * keep, keep


@given(st.integers(1, 400), st.floats(0, 1), st.integers(0, 99), st.booleans(), st.integers(0, 2**32 - 1))
def test_round_trip(size, ratio, seed, nested, number):
    gradient, keep = masked(size, ratio, seed)
    data = encode(gradient, keep, round=number, plan=PLAN, nested=nested)
    back = decode(data, size=size, round=number, plan=PLAN, mask=keep if nested else None)
    assert torch.equal(back.gradient, gradient)
    assert torch.equal(back.mask, keep)


def test_nested_upload_is_the_kept_values_and_a_fixed_header():
    size = 44_426
    for ratio in (0.0, 0.3, 0.5, 1.0):
        gradient, keep = masked(size, ratio)
        data = encode(gradient, keep, round=0, plan=PLAN)
        assert len(data) == upload_bytes(keep_count(ratio, size)) == HEADER_BYTES + 4 * int(keep.sum())
        assert data[HEADER_BYTES:] == gradient[keep].numpy().tobytes()
    assert HEADER_BYTES == 37


def test_indices_take_the_shorter_form():
    size = 10_000
    for ratio, kind, cost in ((0.3, codec.BITMAP, 1250), (0.99, codec.GAPS, None)):
        gradient, keep = masked(size, ratio)
        data = encode(gradient, keep, round=0, plan=PLAN, nested=False)
        assert data[4] == kind
        indices = len(data) - upload_bytes(int(keep.sum()))
        assert indices == cost if cost else 100 <= indices < 1250


@given(st.lists(st.integers(0, 2**34), unique=True, max_size=40))
def test_gaps_round_trip(positions):
    positions = np.array(sorted(positions), dtype=np.int64)
    assert np.array_equal(codec._decode_gaps(codec._encode_gaps(positions)), positions)


def test_gaps_by_hand():
    # positions 0, 1, 130, 16514: gaps 0, 0, 128, 16383
    assert codec._encode_gaps(np.array([0, 1, 130, 16514])) == bytes([0, 0, 0x80, 1, 0xFF, 0x7F])


@given(st.data())
def test_every_damaged_byte_is_noticed(data):
    gradient, keep = masked(60)
    nested = data.draw(st.booleans())
    upload = bytearray(encode(gradient, keep, round=3, plan=PLAN, nested=nested))
    position = data.draw(st.integers(0, len(upload) - 1))
    upload[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(UploadError):
        decode(bytes(upload), size=60, round=3, plan=PLAN, mask=keep)


@given(st.binary(max_size=200), st.booleans())
def test_noise_is_refused_with_a_sentence(noise, with_magic):
    data = b"FGU1" + noise if with_magic else noise
    with pytest.raises(UploadError):
        decode(data, size=60, round=3, plan=PLAN, mask=torch.ones(60, dtype=torch.bool))


@given(st.data())
def test_a_forged_body_with_a_right_checksum_never_crashes(data):
    """Whoever knows the format can write anything: it decodes to a valid upload or is refused."""
    kind, kept = data.draw(st.integers(0, 4)), data.draw(st.integers(0, 80))
    body = data.draw(st.binary(max_size=120))
    _, keep = masked(60)
    digest = data.draw(st.sampled_from([codec.digest(keep), bytes(8)]))
    fields = (b"FGU1", kind, 3, 60, kept, codec._plan_key(PLAN), digest)
    forged = codec._HEADER.pack(*fields, codec._checksum(fields, body)) + body
    try:
        upload = decode(forged, size=60, round=3, plan=PLAN, mask=keep)
    except UploadError:
        return
    assert upload.gradient.isfinite().all()
    assert int(upload.mask.sum()) == kept
    assert not upload.gradient[~upload.mask].any()


def test_of_another_round_plan_or_model():
    gradient, keep = masked(60)
    data = encode(gradient, keep, round=3, plan=PLAN)
    for change, message in (({"round": 4}, "of round 3; this is round 4"), ({"plan": "other"}, "another plan"),
                            ({"size": 61}, "of 60 parameters; this one has 61")):
        with pytest.raises(UploadError, match=message):
            decode(data, **{"size": 60, "round": 3, "plan": PLAN, "mask": keep, **change})


def test_a_mask_that_differs_is_named_and_indices_help():
    gradient, keep = masked(60)
    other = keep.roll(1)
    with pytest.raises(MaskMismatchError, match="ask for its indices"):
        decode(encode(gradient, keep, round=0, plan=PLAN), size=60, round=0, plan=PLAN, mask=other)
    with pytest.raises(MaskMismatchError, match="no indices"):
        decode(encode(gradient, keep, round=0, plan=PLAN), size=60, round=0, plan=PLAN)
    upload = decode(encode(gradient, keep, round=0, plan=PLAN, nested=False), size=60, round=0, plan=PLAN, mask=other)
    assert torch.equal(upload.mask, keep)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_is_refused_at_both_ends(value):
    gradient, keep = masked(60)
    first = int(keep.nonzero()[0])
    bad = gradient.clone()
    bad[first] = value
    with pytest.raises(UploadError, match="not finite"):
        encode(bad, keep, round=0, plan=PLAN)
    data = encode(gradient, keep, round=0, plan=PLAN)
    body = struct.pack("<f", value) + data[HEADER_BYTES + 4 :]
    fields = codec._HEADER.unpack_from(data)[:-1]
    forged = codec._HEADER.pack(*fields, codec._checksum(fields, body)) + body
    with pytest.raises(UploadError, match="not finite"):
        decode(forged, size=60, round=0, plan=PLAN, mask=keep)
