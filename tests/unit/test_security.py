"""Signed bodies: Celery's, ours, and those that must not be run."""

from __future__ import annotations

import base64
import contextlib
import pickle
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.golden_bodies import ARGS, BODIES, CERTIFICATE, KWARGS
from tests.unit.signers import NOW, Signer, make_signer

from umbel.exceptions import DecodeError, ImproperlyConfigured, SecurityError
from umbel.formats import CallReader
from umbel.message import Message
from umbel.protocol import NO_EMBED
from umbel.security import make_auth
from umbel.serializers import Serializer

SEPARATOR = b"\x00\x01"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("store")
    (made / "celery.pem").write_text(CERTIFICATE)
    return made


@pytest.fixture(scope="module")
def alice(folder: Path) -> Signer:
    return make_signer(folder, "alice")


@pytest.fixture(scope="module")
def eve(tmp_path_factory: pytest.TempPathFactory) -> Signer:
    """Whom nobody trusts."""
    return make_signer(tmp_path_factory.mktemp("elsewhere"), "eve")


Make = Callable[..., Serializer]


@pytest.fixture(scope="module")
def auth(folder: Path, alice: Signer) -> Make:
    def make(signer: Signer = alice, **changes: Any) -> Serializer:
        given = {
            "key": str(signer.key),
            "key_password": None,
            "certificate": str(signer.certificate),
            "store": str(folder),
            "digest": "sha256",
            "serializer": "json",
            "allowed": (),
            "now": NOW.timestamp,
        }
        return make_auth(**{**given, **changes})

    return make


def parts_of(data: bytes) -> list[bytes]:
    return base64.b64decode(data).split(SEPARATOR, 4)


def joined(parts: list[bytes]) -> bytes:
    return base64.b64encode(SEPARATOR.join(parts))


def test_what_is_signed_is_read(auth: Make) -> None:
    serializer = auth()
    data = serializer.dumps([[1], {"a": datetime(2026, 1, 1, tzinfo=UTC)}, {}])
    assert serializer.loads(data) == [[1], {"a": datetime(2026, 1, 1, tzinfo=UTC)}, {}]
    signer, _, content_type, encoding, body = parts_of(data)
    assert base64.b64decode(signer).startswith(b"alice ")
    assert (content_type, encoding) == (b"application/json", b"utf-8")
    assert body.startswith(b"[[1],")


@pytest.mark.parametrize(
    "body",
    [each for each in BODIES if each.serializer == "auth"],
    ids=lambda body: str(body.compression),
)
def test_what_celery_signs_is_read(auth: Make, body: Any) -> None:
    message = Message(
        body=body.data,
        content_type=body.content_type,
        content_encoding=body.content_encoding,
        headers={"compression": body.header},
        properties={},
    )
    reader = CallReader.accepting(["auth"], {"auth": auth()}, 10**6)
    assert reader.call(message) == (ARGS, KWARGS, dict(NO_EMBED))


def test_who_is_not_in_the_store_is_not_trusted(auth: Make, eve: Signer) -> None:
    with pytest.raises(SecurityError, match=r"signed by 'eve \d+', whose certificate isn't in"):
        auth().loads(auth(eve).dumps([1]))


def test_who_signs_as_another_is_not_trusted(auth: Make, eve: Signer) -> None:
    forged = parts_of(auth(eve).dumps([1]))
    forged[0] = parts_of(auth().dumps([1]))[0]
    with pytest.raises(SecurityError, match=r"signature of 'alice \d+' isn't that of this body"):
        auth().loads(joined(forged))


def test_what_is_changed_is_not_trusted(auth: Make) -> None:
    parts = parts_of(auth().dumps(["pay", 1]))
    parts[4] = parts[4].replace(b"1", b"9")
    with pytest.raises(SecurityError, match="was it changed"):
        auth().loads(joined(parts))


def test_the_type_of_a_body_which_is_not_signed_can_not_be_chosen_by_a_stranger(
    auth: Make,
) -> None:
    serializer = auth(serializer="msgpack")
    parts = parts_of(serializer.dumps([1]))
    parts[2] = b"application/x-python-serialize"
    with pytest.raises(DecodeError, match="isn't accepted here"):
        serializer.loads(joined(parts))


def test_other_types_of_bodies_are_read_where_they_are_allowed(auth: Make) -> None:
    data = auth(serializer="pickle").dumps([(1, 2)])
    with pytest.raises(DecodeError, match="isn't accepted here"):
        auth().loads(data)
    assert auth(allowed=["pickle"]).loads(data) == [(1, 2)]
    assert pickle.loads(parts_of(data)[4]) == [(1, 2)]


def test_a_body_may_hold_what_stands_between_the_parts(auth: Make) -> None:
    serializer = auth(serializer="msgpack")
    assert serializer.loads(serializer.dumps([SEPARATOR])) == [SEPARATOR]


def test_a_certificate_that_is_not_valid_any_more(folder: Path, auth: Make) -> None:
    old = make_signer(folder, "old", days=40)
    try:
        data = auth(old).dumps([1])
        assert auth().loads(data) == [1]
        late = (NOW + timedelta(days=20)).timestamp
        with pytest.raises(SecurityError, match="whose certificate is valid from"):
            auth(now=late).loads(data)
        early = (NOW - timedelta(days=31)).timestamp
        with pytest.raises(SecurityError, match="whose certificate is valid from"):
            auth(now=early).loads(data)
    finally:
        old.certificate.unlink()


@pytest.mark.parametrize("digest", ["sha512", "SHA384"])
def test_other_digests(auth: Make, digest: str) -> None:
    data = auth(digest=digest).dumps([1])
    assert auth(digest=digest).loads(data) == [1]
    with pytest.raises(SecurityError, match="security_digest"):
        auth().loads(data)


def test_a_key_with_a_password(tmp_path: Path, auth: Make) -> None:
    bob = make_signer(tmp_path, "bob", password=b"secret")
    for password in ("secret", b"secret"):
        assert auth(bob, key_password=password, store=str(tmp_path)).dumps([1])
    with pytest.raises(ImproperlyConfigured, match=r"bob.key' can't be used: .*key_password"):
        auth(bob)
    with pytest.raises(ImproperlyConfigured, match="key_password"):
        auth(bob, key_password="wrong")


def test_set_ups_that_can_not_work(
    tmp_path: Path, folder: Path, auth: Make, alice: Signer, eve: Signer
) -> None:
    with pytest.raises(ImproperlyConfigured, match="security_key 'nowhere' can't be read"):
        auth(key="nowhere")
    with pytest.raises(ImproperlyConfigured, match="isn't a certificate in PEM"):
        auth(certificate=str(alice.key))
    with pytest.raises(ImproperlyConfigured, match="isn't the key of security_certificate"):
        auth(certificate=str(eve.certificate))
    with pytest.raises(ImproperlyConfigured, match="has no certificates"):
        auth(store=str(tmp_path))
    with pytest.raises(ImproperlyConfigured, match="security_digest is 'md5'"):
        auth(digest="md5")
    with pytest.raises(ImproperlyConfigured, match="no serializer 'jason'"):
        auth(serializer="jason")
    curve = ec.generate_private_key(ec.SECP256R1())
    other = tmp_path / "curve.key"
    other.write_bytes(curve.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with pytest.raises(ImproperlyConfigured, match="only RSA keys sign"):
        auth(key=str(other))
    assert auth(store=str(folder / "a*.pem")).dumps([1])


def test_two_certificates_of_one_name(tmp_path: Path, auth: Make) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    make_signer(one, "twin", serial=7)
    twin = make_signer(two, "twin", serial=7)
    (one / "other.pem").write_bytes(twin.certificate.read_bytes())
    with pytest.raises(ImproperlyConfigured, match="two certificates of 'twin 7'"):
        auth(store=str(one))


def test_a_package_that_is_missing_is_named(auth: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(ImproperlyConfigured, match=r"pip install 'umbel\[auth\]'"):
        auth()


@pytest.fixture(scope="module")
def serializer(auth: Make) -> Serializer:
    return auth()


@given(data=st.binary(max_size=200), encoded=st.booleans())
def test_bytes_that_are_no_signed_body(serializer: Serializer, data: bytes, encoded: bool) -> None:
    with pytest.raises(DecodeError):
        serializer.loads(base64.b64encode(data) if encoded else data)


@given(data=st.data())
def test_a_damaged_body_is_never_run(serializer: Serializer, data: st.DataObject) -> None:
    good = bytearray(serializer.dumps([[1, 2], {}, {}]))
    place = data.draw(st.integers(0, len(good) - 1))
    good[place] = data.draw(st.integers(0, 255))
    with contextlib.suppress(DecodeError, SecurityError):
        assert serializer.loads(bytes(good)) == [[1, 2], {}, {}]  # what isn't signed was hit
