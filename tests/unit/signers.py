"""Keys and certificates of people who sign messages."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

NOW: Final = datetime(2026, 6, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Signer:
    """A key and its certificate, in files."""

    key: Path
    certificate: Path


def make_signer(
    folder: Path, name: str, *, password: bytes | None = None, days: int = 365, serial: int = 0
) -> Signer:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(serial or x509.random_serial_number())
        .not_valid_before(NOW - timedelta(days=30))
        .not_valid_after(NOW - timedelta(days=30) + timedelta(days=days))
        .sign(key, hashes.SHA256())
    )
    made = Signer(folder / f"{name}.key", folder / f"{name}.pem")
    encryption = BestAvailableEncryption(password) if password else NoEncryption()
    made.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
    made.certificate.write_bytes(certificate.public_bytes(Encoding.PEM))
    return made
