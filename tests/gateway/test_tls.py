"""TLS to the catalog behind a route: its certificate must be for its name, valid today, and signed by the route's authority."""

import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from duckicelake.gateway.route import Route, RouteSecrets, TokenService
from tests.gateway.fake import LOADED, FakeCatalog, Reply, Seen, fake, routes

TABLE = "/v1/other/namespaces/a/tables/t"
TODAY = datetime.now(UTC)


class Authority:
    """An authority that signs certificates of servers. `file` has its own certificate."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = self._build(self._name, self._key, TODAY + timedelta(days=1))
        own = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True).sign(self._key, hashes.SHA256())
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(own.public_bytes(Encoding.PEM))

    def _build(self, name: x509.Name, key: ec.EllipticCurvePrivateKey, until: datetime) -> x509.CertificateBuilder:
        builder = x509.CertificateBuilder(self._name, name, key.public_key(), x509.random_serial_number())
        return builder.not_valid_before(TODAY - timedelta(days=9)).not_valid_after(until)

    def issue(self, names: x509.SubjectAlternativeName, until: datetime = TODAY + timedelta(days=1)) -> ssl.SSLContext:
        """Return what a server of these names answers with."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._build(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "server")]), key, until)
        signed = builder.add_extension(names, critical=False).sign(self._key, hashes.SHA256())
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        chain = self._folder / f"{signed.serial_number}.pem"
        chain.write_bytes(private + signed.public_bytes(Encoding.PEM))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(chain)
        return context


HERE = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
ELSEWHERE = x509.SubjectAlternativeName([x509.DNSName("other.example.com"), x509.IPAddress(ip_address("127.0.0.2"))])


@pytest.fixture
def ours(tmp_path: Path) -> Iterator[Authority]:
    """The authority that the route names."""
    yield Authority(tmp_path, "ours")


def answer(seen: Seen) -> Reply:
    """A token, or a table."""
    return Reply(body=b'{"access_token":"token","expires_in":3600}' if seen.path.endswith("/tokens") else LOADED)


def make_route(catalog: FakeCatalog, authority: Authority | None) -> Route:
    """A route to a catalog, whose account gets tokens from the same server."""
    secrets, tokens = RouteSecrets(credential="id:secret"), TokenService(f"{catalog.uri}/tokens")
    ca_file = None if authority is None else str(authority.file)
    return Route("other", catalog.uri, auth="oauth2", secrets=secrets, tokens=tokens, ca_file=ca_file)


def test_a_certificate_of_the_routes_authority_is_accepted(ours: Authority) -> None:
    """Of the catalog and of the token endpoint."""
    with fake(answer, tls=ours.issue(HERE)) as catalog, routes(make_route(catalog, ours)) as server:
        assert server.get(TABLE).body == LOADED
        assert {seen.headers.get("authorization") for seen in catalog.asked if "tables" in seen.path} == {"Bearer token"}


def test_the_token_endpoint_alone_may_have_tls(ours: Authority) -> None:
    """Its certificate is verified by the route's authority, too."""
    with fake(answer, tls=ours.issue(HERE)) as issuer, fake(answer) as catalog:
        secrets, tokens = RouteSecrets(credential="id:secret"), TokenService(f"{issuer.uri}/tokens")
        with routes(Route("other", catalog.uri, auth="oauth2", secrets=secrets, tokens=tokens, ca_file=str(ours.file))) as server:
            assert server.get(TABLE).body == LOADED


@pytest.mark.parametrize("kind", ["another authority", "no authority", "another name", "expired"])
def test_other_certificates_are_refused(ours: Authority, tmp_path: Path, kind: str) -> None:
    """Nothing is sent, no secret either; reads and commits get 503 and the reason."""
    contexts = {
        "another authority": lambda: Authority(tmp_path, "theirs").issue(HERE),
        "no authority": lambda: ours.issue(HERE),
        "another name": lambda: ours.issue(ELSEWHERE),
        "expired": lambda: ours.issue(HERE, TODAY - timedelta(days=2)),
    }
    with fake(answer, tls=contexts[kind]()) as catalog:
        with routes(make_route(catalog, None if kind == "no authority" else ours)) as server:
            for method, body in (("GET", None), ("POST", b'{"requirements": [], "updates": []}')):
                refused = server.ask(method, TABLE, {"Content-Type": "application/json"}, body)
                assert refused.error == (503, "SlowDownException")
                assert "ertificate" in refused.json["error"]["message"]
        assert catalog.seen == []
