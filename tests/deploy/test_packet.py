"""Packets: what goes in comes out, and nothing that a stranger sends does more than raise PacketError."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgap.deploy.packet import Packet, PacketError

names = st.text(max_size=10)
packets = st.builds(Packet, st.dictionaries(names, st.one_of(st.integers(-2**53, 2**53), st.text(), st.booleans())),
                    st.dictionaries(names, st.binary(max_size=200), max_size=4))


@given(packets)
def test_what_goes_in_comes_out(packet):
    assert Packet.from_bytes(packet.to_bytes(), 10_000_000) == packet


@given(st.binary(max_size=300))
def test_any_bytes_are_a_packet_or_refused(data):
    with contextlib.suppress(PacketError):
        Packet.from_bytes(data, 1000)


@given(packets, st.data())
def test_a_damaged_packet_is_read_or_refused(packet, data):
    raw = bytearray(packet.to_bytes())
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(PacketError):
        Packet.from_bytes(bytes(raw), 10_000_000)


@pytest.mark.parametrize("change", [lambda raw: raw[:-1], lambda raw: raw + b"x", lambda raw: raw[:3], lambda raw: b""])
def test_a_packet_of_the_wrong_length_is_refused(change):
    with pytest.raises(PacketError):
        Packet.from_bytes(change(Packet({"kind": "x"}, {"a": b"12345"}).to_bytes()), 1000)


def test_the_limit_is_kept():
    raw = Packet({}, {"a": bytes(100)}).to_bytes()
    assert Packet.from_bytes(raw, len(raw)).blobs["a"] == bytes(100)
    with pytest.raises(PacketError, match="at most"):
        Packet.from_bytes(raw, len(raw) - 1)


def test_fields_are_checked_when_read():
    packet = Packet({"a": True, "b": 1.5, "c": "x" * 2000})
    for read in (lambda: packet.whole("a"), lambda: packet.whole("b"), lambda: packet.number("a"),
                 lambda: packet.text("c"), lambda: packet.number("missing"), lambda: packet.blob("missing")):
        with pytest.raises(PacketError):
            read()
    assert packet.number("b") == 1.5
