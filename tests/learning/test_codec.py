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


@given(st.integers(1, 900), st.floats(0, 1), st.booleans(), st.sampled_from([8, 4]))
def test_small_uploads_round_trip(size, ratio, nested, bits):
    """What arrives is a whole multiple of the block's scale and less than a scale away; indices are as ever."""
    gradient, keep = masked(size, ratio)
    data = encode(gradient, keep, round=7, plan=PLAN, nested=nested, bits=bits, key=5)
    back = decode(data, size=size, round=7, plan=PLAN, mask=keep if nested else None, bits=bits)
    assert torch.equal(back.mask, keep)
    largest = gradient.abs().max().item() if size else 0.0
    assert (back.gradient - gradient).abs().max() <= largest / codec.largest_number(bits) * (1 + 1e-5)


def test_32_bits_are_written_as_in_version_0_1():
    gradient, keep = torch.tensor([1.5, 0, -2.25, 0.125, 0]), torch.tensor([True, False, True, True, False])
    data = encode(gradient, keep, round=2, plan=PLAN, nested=False)
    assert data.hex() == ("46475531010200000005000000030000000f32604bd6f3603fe620fea3c3a7503d7a6e537d"
                          "b00000c03f000010c00000003e")


def test_bits_must_be_those_agreed_upon():
    gradient, keep = masked(60)
    for sent, agreed in ((8, 32), (32, 8), (4, 8), (8, 4)):
        data = encode(gradient, keep, round=0, plan=PLAN, bits=sent)
        with pytest.raises(UploadError, match=f"values must have {agreed} bits"):
            decode(data, size=60, round=0, plan=PLAN, mask=keep, bits=agreed)


def forge(data: bytes, body: bytes) -> bytes:
    """The upload with another body and the checksum that belongs to it."""
    fields = codec._HEADER.unpack_from(data)[:-1]
    return codec._HEADER.pack(*fields, codec._checksum(fields, body)) + body


@pytest.mark.parametrize(("bits", "change", "says"), [
    (8, lambda body: body[:4] + b"\x80" + body[5:], "out of range"),  # -128
    (4, lambda body: body[:4] + b"\x08" + body[5:], "out of range"),  # -8
    (4, lambda body: body[:-1] + bytes([body[-1] | 0x10]), "more values than the header announces"),
    (8, lambda body: struct.pack("<f", -1.0) + body[4:], "out of range"),
    (8, lambda body: struct.pack("<f", float("nan")) + body[4:], "out of range"),
    (8, lambda body: struct.pack("<f", float("inf")) + body[4:], "must be finite"),
    (8, lambda body: struct.pack("<f", 3e38) + body[4:], "must be finite"),  # 127 times that is infinite
    (8, lambda body: body[:-1], "announces 35 values of 8 bits; 1 bytes are missing"),
    (4, lambda body: body + b"\0", "1 bytes too long"),
])
def test_a_forged_small_upload_is_refused(bits, change, says):
    gradient, keep = masked(59)
    data = encode(gradient, keep, round=0, plan=PLAN, bits=bits)
    assert int(keep.sum()) == 35
    with pytest.raises(UploadError, match=says):
        decode(forge(data, change(data[HEADER_BYTES:])), size=59, round=0, plan=PLAN, mask=keep, bits=bits)


def test_a_gradient_whose_scale_would_overflow_is_refused():
    keep = torch.ones(3, dtype=torch.bool)
    largest = torch.full((3,), torch.finfo(torch.float32).max)  # divided and multiplied by 127 it is infinite
    with pytest.raises(UploadError, match="too large for 8 bits"):
        encode(largest, keep, round=0, plan=PLAN, bits=8)
    assert decode(encode(0.99 * largest, keep, round=0, plan=PLAN, bits=8), size=3, round=0, plan=PLAN, mask=keep,
                  bits=8).gradient.isfinite().all()


@given(st.data())
def test_every_damaged_byte_is_noticed(data):
    gradient, keep = masked(60)
    nested = data.draw(st.booleans())
    bits = data.draw(st.sampled_from([32, 8, 4]))
    upload = bytearray(encode(gradient, keep, round=3, plan=PLAN, nested=nested, bits=bits))
    position = data.draw(st.integers(0, len(upload) - 1))
    upload[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(UploadError):
        decode(bytes(upload), size=60, round=3, plan=PLAN, mask=keep, bits=bits)


@given(st.binary(max_size=200), st.booleans())
def test_noise_is_refused_with_a_sentence(noise, with_magic):
    data = b"FGU1" + noise if with_magic else noise
    with pytest.raises(UploadError):
        decode(data, size=60, round=3, plan=PLAN, mask=torch.ones(60, dtype=torch.bool))


@given(st.data())
def test_a_forged_body_with_a_right_checksum_never_crashes(data):
    """Whoever knows the format can write anything: it decodes to a valid upload or is refused."""
    bits, kept = data.draw(st.sampled_from([32, 8, 4])), data.draw(st.integers(0, 80))
    kind = data.draw(st.integers(0, 4)) | (32, 8, 4).index(bits) << 4
    body = data.draw(st.binary(max_size=120))
    _, keep = masked(60)
    digest = data.draw(st.sampled_from([codec.digest(keep), bytes(8)]))
    fields = (b"FGU1", kind, 3, 60, kept, codec._plan_key(PLAN), digest)
    forged = codec._HEADER.pack(*fields, codec._checksum(fields, body)) + body
    try:
        upload = decode(forged, size=60, round=3, plan=PLAN, mask=keep, bits=bits)
    except UploadError:
        return
    assert upload.gradient.isfinite().all()
    assert int(upload.mask.sum()) == kept
    assert not upload.gradient[~upload.mask].any()


def test_of_another_round_plan_or_model():
    gradient, keep = masked(60)
    data = encode(gradient, keep, round=3, plan=PLAN)
    for change, message in (({"round": 4}, "to round 3; this is round 4"), ({"plan": "other"}, "another plan"),
                            ({"size": 61}, "of 60 parameters; this model has 61")):
        with pytest.raises(UploadError, match=message):
            decode(data, **{"size": 60, "round": 3, "plan": PLAN, "mask": keep, **change})


def test_a_mask_that_differs_is_named_and_indices_help():
    gradient, keep = masked(60)
    other = keep.roll(1)
    with pytest.raises(MaskMismatchError, match="ask the client for the indices"):
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
    with pytest.raises(UploadError, match="must be finite"):
        encode(bad, keep, round=0, plan=PLAN)
    data = encode(gradient, keep, round=0, plan=PLAN)
    body = struct.pack("<f", value) + data[HEADER_BYTES + 4 :]
    fields = codec._HEADER.unpack_from(data)[:-1]
    forged = codec._HEADER.pack(*fields, codec._checksum(fields, body)) + body
    with pytest.raises(UploadError, match="must be finite"):
        decode(forged, size=60, round=0, plan=PLAN, mask=keep)
