"""Keys and certificates: private, of the form that Flower takes, and trusted by TLS for the named hosts only."""

import contextlib
import socket
import ssl
import stat
import threading

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from fedgap.deploy.flower_processes import SuperLink
from fedgap.deploy.keys import make_certificates, make_node_key, private_folder
from fedgap.errors import InputError


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_permissions(tmp_path):
    folder = tmp_path / "keys"
    make_certificates(folder, ["127.0.0.1"])
    make_node_key(folder, "a")
    assert mode(folder) == 0o700
    assert {path.name: mode(path) for path in folder.iterdir()} == {
        "ca.key": 0o600, "ca.crt": 0o644, "server.key": 0o600, "server.crt": 0o644, "a": 0o600, "a.pub": 0o644}


def test_a_folder_that_others_may_enter_is_refused(tmp_path):
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(InputError, match="chmod 700"):
        private_folder(tmp_path / "open")


def test_node_keys_are_openssh_p384_and_kept(tmp_path):
    private, public = make_node_key(tmp_path / "keys", "a")
    key = load_ssh_private_key(private.read_bytes(), None)
    assert isinstance(key.curve, ec.SECP384R1)
    assert load_ssh_public_key(public.read_bytes()).public_numbers() == key.public_key().public_numbers()
    before = private.read_bytes()
    make_node_key(tmp_path / "keys", "a")
    assert private.read_bytes() == before


def test_new_server_certificates_keep_the_authority(tmp_path):
    make_certificates(tmp_path / "keys", ["one.example"])
    authority = (tmp_path / "keys" / "ca.crt").read_bytes()
    make_certificates(tmp_path / "keys", ["two.example", "10.0.0.7"])
    assert (tmp_path / "keys" / "ca.crt").read_bytes() == authority
    server = x509.load_pem_x509_certificate((tmp_path / "keys" / "server.crt").read_bytes())
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["two.example", "localhost"]
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.7", "127.0.0.1"]


@pytest.mark.parametrize(("name", "trusted"), [
    ("server.example", True), ("127.0.0.1", True), ("localhost", True), ("elsewhere.example", False)])
def test_tls_trusts_the_named_hosts_only(tmp_path, name, trusted):
    keys = tmp_path / "keys"
    make_certificates(keys, ["server.example"])
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(keys / "server.crt", keys / "server.key")
    asking = ssl.create_default_context(cafile=keys / "ca.crt")
    asking.verify_flags |= ssl.VERIFY_X509_STRICT
    with socket.create_server(("127.0.0.1", 0)) as listener:
        def accept():
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                serving.wrap_socket(connection, server_side=True).close()

        thread = threading.Thread(target=accept)
        thread.start()
        with socket.create_connection(listener.getsockname()) as raw:
            if trusted:
                with asking.wrap_socket(raw, server_hostname=name) as secure:
                    assert secure.version() == "TLSv1.3"
            else:
                with pytest.raises(ssl.SSLCertVerificationError):
                    asking.wrap_socket(raw, server_hostname=name)
        thread.join()


@pytest.mark.parametrize("host", ["", "a b", "sérver", "1.2.3.400", "https://server.example", "server.example:8000",
                                  "-x", "x" * 300, "a..b"])
def test_a_host_that_is_none_is_named_and_nothing_is_written(tmp_path, host):
    with pytest.raises(InputError, match=r"--host: .*must be an address or a name"):
        make_certificates(tmp_path / "keys", [host])
    assert not (tmp_path / "keys").exists()


@pytest.mark.parametrize("host", ["localhost", "server.example", "*.shops.example", "10.0.0.1", "::1", "a-b_c", "4you"])
def test_hosts_that_are_names_or_addresses(tmp_path, host):
    make_certificates(tmp_path / "keys", [host])
    server = x509.load_pem_x509_certificate((tmp_path / "keys" / "server.crt").read_bytes())
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert host in [str(name.value) for name in names]


def test_a_file_is_no_folder_for_keys(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be created"):
        private_folder(tmp_path / "file")


def test_a_port_that_is_taken_is_named(tmp_path):
    make_certificates(tmp_path / "keys", ["127.0.0.1"])
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        superlink = SuperLink(tmp_path / "link", host="0.0.0.0", port=port, keys=tmp_path / "keys", most_bytes=1)
        with pytest.raises(InputError, match=f"--port: another program already listens on 127.0.0.1:{port}"):
            superlink.start()
        assert superlink.process is None
