"""Certificates with which the parts of the embedded S3 know each other, made at random per home."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from duckicelake.backends.home import write_private
from duckicelake.backends.ports import LOOPBACK

LIFETIME = timedelta(days=3650)
RENEW_BEFORE = timedelta(days=365)


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """One certificate for both ends of every connection, and the authority that signed it."""

    authority: Path
    certificate: Path
    key: Path


def prepare_certificates(folder: Path, now: datetime) -> CertificateFiles:
    """Return the certificate files in the folder, made anew when missing or near their end."""
    files = CertificateFiles(folder / "ca.pem", folder / "peer.pem", folder / "peer.key")
    if not _is_good(files, now):
        _make_certificates(files, now)
    return files


def _is_good(files: CertificateFiles, now: datetime) -> bool:
    if not (files.authority.exists() and files.key.exists() and files.certificate.exists()):
        return False
    found = x509.load_pem_x509_certificate(files.certificate.read_bytes())
    return found.not_valid_after_utc - RENEW_BEFORE > now


def _make_certificates(files: CertificateFiles, now: datetime) -> None:
    authority_key = ec.generate_private_key(ec.SECP256R1())
    peer_key = ec.generate_private_key(ec.SECP256R1())
    authority_name = _name("duckicelake embedded S3 authority")
    authority = (
        _start(authority_name, authority_name, authority_key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    peer = (
        _start(_name("duckicelake embedded S3"), authority_name, peer_key.public_key(), now)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(IPv4Address(LOOPBACK)), x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    private = peer_key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    write_private(files.authority, authority.public_bytes(serialization.Encoding.PEM))
    write_private(files.key, private)
    write_private(files.certificate, peer.public_bytes(serialization.Encoding.PEM))


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _start(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now.astimezone(UTC) - timedelta(days=1)).not_valid_after(now.astimezone(UTC) + LIFETIME)
