"""Signed bodies: Celery's serializer ``auth``, for messages whose sender must be known.

A body is base64 of five parts with the bytes 00 01 between them::

    signer's id (base64)  signature (base64)  content type  content encoding  inner body

The id is the certificate's issuer and serial number: the values of its name and the number, with
spaces. The signature is RSA-PSS (MGF1 with the same digest, the longest salt) over the inner body
**alone**: the task's name, its headers and its times are not signed, and neither is the inner
content type, which is why only the types that were allowed are read.
"""

from __future__ import annotations

import base64
import glob
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from umbel.exceptions import DecodeError, ImproperlyConfigured, SecurityError
from umbel.serialization import find_serializer, read, readers
from umbel.serializers import Serializer
from umbel.settings import Settings

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.x509 import Certificate

NAME: Final = "auth"
CONTENT_TYPE: Final = "application/data"

_BETWEEN: Final = b"\x00\x01"
_DIGESTS: Final = ("sha224", "sha256", "sha384", "sha512", "sha3_256", "sha3_384", "sha3_512")


def make_auth(
    *,
    key: str,
    key_password: str | bytes | None,
    certificate: str,
    store: str,
    digest: str,
    serializer: str,
    allowed: Iterable[str],
    now: Callable[[], float],
) -> Serializer:
    """The serializer ``auth``.

    `key` and `certificate` are files in PEM, `store` is a folder of ``*.pem`` or a glob of files.
    `serializer` makes the inner bodies; `allowed` are others that are read in them too. `now` is
    in unix seconds. Raises `ImproperlyConfigured` for what can't work.
    """
    _require_package()
    inner = find_serializer(serializer)
    own = _load_certificate(certificate)
    auth = _Auth(
        _load_key(key, key_password),
        _id_of(own),
        _load_store(store),
        digest,
        inner,
        readers({inner.name, *allowed}),
        now,
    )
    auth.check(own, key, certificate)
    return Serializer(NAME, CONTENT_TYPE, "utf-8", auth.sign, auth.verify, inner.keeps)


@dataclass(frozen=True, slots=True)
class _Auth:
    key: RSAPrivateKey
    signer: str
    store: Mapping[str, Certificate]
    digest: str
    inner: Serializer
    accepted: Mapping[str, Serializer]
    now: Callable[[], float]

    def check(self, own: Certificate, key: str, certificate: str) -> None:
        """Raises `ImproperlyConfigured` where the key isn't the certificate's."""
        _digest(self.digest)
        if own.public_key() != self.key.public_key():
            raise ImproperlyConfigured(
                f"security_key {key!r} isn't the key of security_certificate {certificate!r}"
            )

    def sign(self, value: object) -> str:
        from cryptography.hazmat.primitives.asymmetric import padding

        body = self.inner.dumps(value)
        digest = _digest(self.digest)
        scheme = padding.PSS(padding.MGF1(digest), padding.PSS.MAX_LENGTH)
        parts = (
            base64.b64encode(self.signer.encode()),
            base64.b64encode(self.key.sign(body, scheme, digest)),
            self.inner.content_type.encode(),
            self.inner.content_encoding.encode(),
            body,
        )
        return base64.b64encode(_BETWEEN.join(parts)).decode("ascii")

    def verify(self, data: bytes) -> Any:
        """The value. SecurityError for what is signed by nobody known; else DecodeError."""
        try:
            parts = base64.b64decode(data, validate=True).split(_BETWEEN, 4)
            signer, signature, kind, encoding, body = parts
            name = base64.b64decode(signer, validate=True).decode()
            proof = base64.b64decode(signature, validate=True)
            content_type, content_encoding = kind.decode("ascii"), encoding.decode("ascii")
        except ValueError as error:
            raise DecodeError(f"the content isn't a signed body: {error}") from error
        self._verify_signature(name, proof, body)
        return read(body, content_type, content_encoding, self.accepted)

    def _verify_signature(self, signer: str, signature: bytes, body: bytes) -> None:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric import padding

        found = self.store.get(signer)
        if found is None:
            raise SecurityError(
                f"the message is signed by {signer!r:.200}, whose certificate isn't in "
                f"security_cert_store; in there: {', '.join(sorted(self.store)) or 'none'}"
            )
        now = datetime.fromtimestamp(self.now(), UTC)
        if not found.not_valid_before_utc <= now <= found.not_valid_after_utc:
            raise SecurityError(
                f"the message is signed by {signer!r:.200}, whose certificate is valid from "
                f"{found.not_valid_before_utc} to {found.not_valid_after_utc}; now it is {now}"
            )
        digest = _digest(self.digest)
        scheme = padding.PSS(padding.MGF1(digest), padding.PSS.AUTO)
        public: Any = found.public_key()
        try:
            public.verify(signature, body, scheme, digest)
        except InvalidSignature as error:
            raise SecurityError(
                f"the signature of {signer!r:.200} isn't that of this body; was it changed, or "
                "signed with another digest (security_digest) or key?"
            ) from error


def _require_package() -> None:
    try:
        import cryptography  # noqa: F401  # is it there?
    except ImportError as error:
        raise ImproperlyConfigured(
            "signed messages need the package cryptography; install it: pip install 'umbel[auth]'"
        ) from error


def _digest(name: str) -> Any:
    from cryptography.hazmat.primitives import hashes

    if name.lower() not in _DIGESTS:
        raise ImproperlyConfigured(
            f"security_digest is {name!r}; expected one of {', '.join(_DIGESTS)}"
        )
    return getattr(hashes, name.upper())()


def _read_file(setting: str, path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ImproperlyConfigured(f"{setting} {path!r} can't be read: {error}") from error


def _load_key(path: str, password: str | bytes | None) -> RSAPrivateKey:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    secret = password.encode() if isinstance(password, str) else password
    data = _read_file("security_key", path)
    try:
        key = load_pem_private_key(data, secret)
    # The package raises errors of its own kinds for each thing that can be wrong with a key.
    except Exception as error:
        raise ImproperlyConfigured(
            f"security_key {path!r} can't be used: {error}. Expected a private RSA key in PEM, and "
            "security_key_password if it has one"
        ) from error
    if not isinstance(key, RSAPrivateKey):
        raise ImproperlyConfigured(
            f"security_key {path!r} is a {type(key).__name__}; only RSA keys sign messages"
        )
    return key


def _load_certificate(path: str, setting: str = "security_certificate") -> Certificate:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
    from cryptography.x509 import load_pem_x509_certificate

    data = _read_file(setting, path)
    try:
        certificate = load_pem_x509_certificate(data)
        rsa = isinstance(certificate.public_key(), RSAPublicKey)
    except Exception as error:
        raise ImproperlyConfigured(
            f"{setting}: {path!r} isn't a certificate in PEM: {error}"
        ) from error
    if not rsa:
        raise ImproperlyConfigured(f"{setting}: {path!r} isn't of an RSA key; only those sign")
    return certificate


def _load_store(place: str) -> dict[str, Certificate]:
    pattern = os.path.join(place, "*.pem") if os.path.isdir(place) else place
    paths = sorted(glob.glob(pattern))
    if not paths:
        raise ImproperlyConfigured(
            f"security_cert_store {place!r} has no certificates; expected a folder of *.pem files, "
            "or a glob of files"
        )
    found: dict[str, Certificate] = {}
    for path in paths:
        certificate = _load_certificate(path, "security_cert_store")
        name = _id_of(certificate)
        if name in found and found[name] != certificate:
            raise ImproperlyConfigured(
                f"security_cert_store {place!r} has two certificates of {name!r}; "
                "one issuer must not use a serial number twice"
            )
        found[name] = certificate
    return found


def _id_of(certificate: Certificate) -> str:
    names = [str(attribute.value) for attribute in certificate.issuer]
    return " ".join([*names, str(certificate.serial_number)])


def auth_by_settings(
    conf: Settings,
    *,
    key: str | None,
    key_password: str | bytes | None,
    cert: str | None,
    store: str | None,
    digest: str | None,
    serializer: str,
    allowed: Iterable[str],
    now: Callable[[], float],
) -> Serializer:
    """The serializer ``auth`` as `Umbel.setup_security` says; the settings fill in what is None."""
    if conf.task_serializer != NAME or tuple(conf.accept_content) != (NAME,):
        raise ImproperlyConfigured(
            f"task_serializer is {conf.task_serializer!r} and accept_content is "
            f"{list(conf.accept_content)}; before setup_security() set task_serializer='auth' "
            "and accept_content=['auth'], so that nothing unsigned is sent or run"
        )
    files = {
        "security_key": key or conf.security_key,
        "security_certificate": cert or conf.security_certificate,
        "security_cert_store": store or conf.security_cert_store,
    }
    missing = [name for name, value in files.items() if not value]
    if missing:
        raise ImproperlyConfigured(
            f"signing needs {', '.join(missing)}; set it, or give it to setup_security()"
        )
    return make_auth(
        key=files["security_key"] or "",
        key_password=key_password or conf.security_key_password,
        certificate=files["security_certificate"] or "",
        store=files["security_cert_store"] or "",
        digest=digest or conf.security_digest,
        serializer=serializer,
        allowed=allowed,
        now=now,
    )
