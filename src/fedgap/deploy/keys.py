"""Keys and certificates of a deployment, created in a folder that only its owner can read.

``ca.crt`` (which nodes need), ``ca.key``, ``server.crt``, ``server.key``; for each node ``NAME`` (its private key in
OpenSSH format, ECDSA P-384, because Flower refuses PEM) and ``NAME.pub``. A node may create its key pair itself and
hand over the public half; the name of the file is then the node's name for the server."""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import os
import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote, unquote

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fedgap.errors import InputError

OWN_HOSTS = ("localhost", "127.0.0.1")
"""Names by which processes and commands on the server's machine reach the SuperLink; every server certificate has
them."""
LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
HOST = re.compile(rf"(?=.*[A-Za-z])(\*\.)?({LABEL}\.)*{LABEL}")
"""Pattern of a host name in ASCII. It must have a letter, because a text without one was meant as an address."""
VALID_DAYS = 825
"""Number of days for which a certificate is valid; many systems refuse longer times."""


def private_folder(folder: Path) -> Path:
    """Create the folder with permissions 0700 and return it. Raises an InputError if other accounts can enter it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be created ({error.strerror})") from None
    if folder.stat().st_mode & 0o077:
        raise InputError(f"{folder}: must be closed to other accounts, because it holds private keys; run chmod 700 "
                         f"{folder}")
    return folder


def make_certificates(folder: Path, hosts: Sequence[str]) -> None:
    """Make a certificate authority for this deployment and a server certificate for ``hosts`` (names or addresses).

    The certificate always includes the loopback interface, over which a SuperLink's server app connects. An existing
    ``ca.key`` is kept, so that nodes that have ``ca.crt`` still trust the server."""
    names = [_host(host) for host in dict.fromkeys([*hosts, *OWN_HOSTS])]
    private_folder(folder)
    ca_key_file, ca_file = folder / "ca.key", folder / "ca.crt"
    if ca_key_file.is_file() and ca_file.is_file():
        loaded = serialization.load_pem_private_key(ca_key_file.read_bytes(), None)
        assert isinstance(loaded, ec.EllipticCurvePrivateKey)
        ca_key, ca = loaded, x509.load_pem_x509_certificate(ca_file.read_bytes())
    else:
        ca_key = ec.generate_private_key(ec.SECP384R1())
        name = _name("fedgap deployment")
        ca = (
            _certificate(name, name, ca_key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(certificate_sign=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
            .sign(ca_key, hashes.SHA384())
        )
        _write(ca_key_file, _pem(ca_key), 0o600)
        _write(ca_file, ca.public_bytes(serialization.Encoding.PEM), 0o644)
    key = ec.generate_private_key(ec.SECP384R1())
    server = (
        _certificate(_name(hosts[0]), ca.subject, key.public_key())
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(certificate_sign=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA384())
    )
    _write(folder / "server.key", _pem(key), 0o600)
    _write(folder / "server.crt", server.public_bytes(serialization.Encoding.PEM), 0o644)


def make_node_key(folder: Path, name: str) -> tuple[Path, Path]:
    """Make a node's key pair in ``folder`` and return the private and the public file; an existing pair is kept."""
    file = quote(name, safe=" ")
    private, public = private_folder(folder) / file, folder / f"{file}.pub"
    if not (private.is_file() and public.is_file()):
        key = ec.generate_private_key(ec.SECP384R1())
        text = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        )
        _write(private, text, 0o600)
        line = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        _write(public, line + b"\n", 0o644)
    return private, public


def read_public_keys(folder: Path) -> dict[str, bytes]:
    """The public keys in ``folder`` (files ``NAME.pub``) by the names of their nodes, as PEM, the form that Flower
    compares."""
    keys: dict[str, bytes] = {}
    for path in sorted(folder.glob("*.pub")):
        try:
            key = serialization.load_ssh_public_key(path.read_bytes())
        except (ValueError, UnsupportedAlgorithm):
            raise InputError(f"{path}: must be a public key in OpenSSH format; make one with `fedgap deploy key`"
                             ) from None
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise InputError(f"{path}: must be an ECDSA key; make one with `fedgap deploy key`")
        pem, name = public_pem(key), unquote(path.stem)
        if other := next((name for name, known in keys.items() if known == pem), None):
            raise InputError(f"{path}: is the same key as {other}.pub, and every node needs its own; make one with "
                             "`fedgap deploy key`")
        keys[name] = pem
    return keys


def read_private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Read a node's private key."""
    try:
        key = serialization.load_ssh_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InputError(f"{path}: must be a private key in OpenSSH format without a password ({error}); make one with "
                         "`fedgap deploy key`") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InputError(f"{path}: must be an ECDSA key; make one with `fedgap deploy key`")
    return key


def public_pem(key: ec.EllipticCurvePublicKey) -> bytes:
    """A public key in the form in which Flower's SuperNode sends it."""
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def node_id(pem: bytes) -> int:
    """Flower's number for the node with this public key.

    Flower would draw a random one. This one is the same in every SuperLink, so that nodes stay connected when theirs is
    restarted."""
    return int.from_bytes(hashlib.sha256(pem).digest()[:8], "big") | 2  # never 0 or 1; 1 is the SuperLink


def _write(path: Path, data: bytes, mode: int) -> None:
    """Write a file that has these permissions from the moment it is created."""
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if not HOST.fullmatch(host) or len(host) > 253:
            raise InputError(f"--host: {host!r} must be an address or a name such as server.example, without https:// "
                             "and without a port") from None
        return x509.DNSName(host)


def _certificate(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))  # clocks differ a little
        .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
    )


def _usage(*, certificate_sign: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not certificate_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=certificate_sign,
        crl_sign=certificate_sign,
        encipher_only=False,
        decipher_only=False,
    )
