"""JWTs of another issuer: valid ones authenticate, forged and invalid ones are refused."""

import base64
import hashlib
import hmac
import json

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from onbeat.app.settings import Settings
from onbeat.errors import InvalidSettings
from onbeat.service.access import Caller
from onbeat.testing import ManualClock
from onbeat.web.security.jwt import Jwt, NotAccepted
from tests.given_settings import given_settings

ISSUER, AUDIENCE = "https://issuer.example", "onbeat"
CLOCK = ManualClock()
NOW = CLOCK.now() // 1000
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
KEYS = {
    "RS256": RSA,
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate(),
}
SECRET = b"0123456789abcdef0123456789abcdef"
CLAIMS = {
    "iss": ISSUER,
    "aud": AUDIENCE,
    "sub": "ann",
    "scope": "openid define read",
    "exp": NOW + 600,
    "iat": NOW,
}


def public_pem(key):
    encoding, form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(encoding, form)


def b64(value):
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


def claims(*without, **more):
    return {name: value for name, value in (CLAIMS | more).items() if name not in without}


def signed(payload=None, *, header=None, key=RSA, algorithm="RS256", raw=None):
    """Return a correctly signed token with any content."""
    text = json.dumps(CLAIMS if payload is None else payload).encode() if raw is None else raw
    return jwt.PyJWS().encode(text, key, algorithm, headers=header)


def assembled(header, payload, signature=b""):
    return f"{b64(header)}.{b64(payload)}.{b64(signature)}"


def hs256(header, payload, secret):
    """Return a token signed with HMAC, without a library, which would refuse some of these secrets."""
    head = f"{b64(header)}.{b64(payload)}"
    return f"{head}.{b64(hmac.new(secret, head.encode(), hashlib.sha256).digest())}"


def rs256_assembled(header, payload):
    """Return a token signed with the right key, with a header that a library would not write."""
    head = f"{header if isinstance(header, str) else b64(header)}.{b64(payload)}"
    algorithm = jwt.algorithms.RSAAlgorithm(jwt.algorithms.RSAAlgorithm.SHA256)
    return f"{head}.{b64(algorithm.sign(head.encode(), RSA))}"


def settings_with(tmp_path, text, algorithm="RS256", **more):
    path = tmp_path / "jwt.key"
    path.write_bytes(text)
    usual = {"jwt_issuer": ISSUER, "jwt_audience": AUDIENCE}
    return given_settings(jwt_key=str(path), jwt_algorithm=algorithm, **usual | more)


@pytest.fixture
def checker(tmp_path):
    return Jwt(settings_with(tmp_path, public_pem(RSA)), CLOCK)


@pytest.mark.parametrize("algorithm", KEYS)
def test_jwt_identifies_the_caller_and_its_scope(tmp_path, algorithm):
    key = KEYS[algorithm]
    checker = Jwt(settings_with(tmp_path, public_pem(key), algorithm), CLOCK)
    found = checker.caller(signed(key=key, algorithm=algorithm))
    assert found == Caller("jwt:ann", "define", "ann")


def test_jwt_may_be_signed_with_a_shared_secret(tmp_path):
    checker = Jwt(settings_with(tmp_path, SECRET + b"\n", "HS256"), CLOCK)
    assert checker.caller(signed(key=SECRET, algorithm="HS256")).name == "jwt:ann"


def test_service_authenticates_with_a_jwt(world, tmp_path):
    made = settings_with(tmp_path, public_pem(RSA))
    names = ("jwt_key", "jwt_algorithm", "jwt_issuer", "jwt_audience")
    world.open(**{name: getattr(made, name) for name in names})
    assert world.ask(token=signed()).status == 200
    assert world.passed[0][0]["state"]["caller"] == Caller("jwt:ann", "define", "ann")
    assert world.ask(token=signed(claims(exp=NOW - 60))).problem_text == "it has expired"
    assert world.ask(token=f"{signed()}x").status == 401
    assert world.ask(token=world.a_token()).status == 200  # tokens of Onbeat remain valid


def test_jwt_is_refused_without_a_configured_key(world):
    assert world.ask(token=signed()).status == 401


ATTACKS = {
    # -- the algorithm
    **{f"alg {alg!r}": assembled({"alg": alg, "typ": "JWT"}, CLAIMS) for alg in
       ("none", "None", "NONE", "nOnE", "none ", "", None, 0, [], ["RS256"], "null")},
    "alg none, with a signature": assembled({"alg": "none"}, CLAIMS, b"x" * 256),
    "no alg": assembled({"typ": "JWT"}, CLAIMS),
    "HS256 with the public key as the secret": hs256({"alg": "HS256", "typ": "JWT"}, CLAIMS, public_pem(RSA)),
    "HS256 with the public key without its newline": hs256({"alg": "HS256"}, CLAIMS, public_pem(RSA).strip()),
    "HS256 that says RS256": hs256({"alg": "RS256"}, CLAIMS, public_pem(RSA)),
    "HS256 with an empty secret": hs256({"alg": "HS256"}, CLAIMS, b""),
    "RS512 of the right key": signed(algorithm="RS512"),
    "PS256 of the right key": signed(algorithm="PS256"),
    "rs256 in small letters": rs256_assembled({"alg": "rs256"}, CLAIMS),
    # -- the header
    "kid is a path": rs256_assembled({"alg": "RS256", "kid": ["../../dev/null"]}, CLAIMS),
    "kid is a path, HS256 with nothing": hs256({"alg": "HS256", "kid": "../../../../dev/null"}, CLAIMS, b""),
    "kid is SQL, HS256": hs256({"alg": "HS256", "kid": "x' UNION SELECT 'k"}, CLAIMS, b"k"),
    "jku": rs256_assembled({"alg": "RS256", "jku": "https://evil.example/keys"}, CLAIMS),
    "x5u": rs256_assembled({"alg": "RS256", "x5u": "https://evil.example/cert"}, CLAIMS),
    "x5c": rs256_assembled({"alg": "RS256", "x5c": ["AAAA"]}, CLAIMS),
    "jwk of another key": signed(header={"jwk": json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(OTHER_RSA.public_key()))}, key=OTHER_RSA),
    "crit": rs256_assembled({"alg": "RS256", "crit": ["exp"], "exp": 1}, CLAIMS),
    "b64 false": rs256_assembled({"alg": "RS256", "b64": False, "crit": ["b64"]}, CLAIMS),
    "zip": rs256_assembled({"alg": "RS256", "zip": "DEF"}, CLAIMS),
    "cty, a token in a token": rs256_assembled({"alg": "RS256", "cty": "JWT"}, signed().encode()),
    "typ of another kind": rs256_assembled({"alg": "RS256", "typ": "logout+jwt"}, CLAIMS),
    "alg twice": rs256_assembled(b64(b'{"alg":"none","alg":"RS256"}'), CLAIMS),
    "header is a list": rs256_assembled(["RS256"], CLAIMS),
    # -- the form
    "no signature": signed().rpartition(".")[0],
    "an empty signature": f"{signed().rpartition('.')[0]}.",
    "a dot more": f"{signed()}.",
    "a dot before": f".{signed()}",
    "four parts": f"{signed()}.AAAA",
    "five parts, as a JWE": f"{b64({'alg': 'RSA-OAEP', 'enc': 'A128GCM'})}.AAAA.AAAA.AAAA.AAAA",
    "JSON instead of dots": json.dumps({"payload": b64(CLAIMS), "signature": signed().split(".")[2]}),
    "nothing": "",
    "padding": "=.".join(signed().split(".")) + "=",
    "the other alphabet": "+/+/.+/+/.+/+/",
    "another spelling of the same signature": signed()[:-1] + chr(ord(signed()[-1]) + 1),
    "a space": signed().replace(".", " .", 1),
    "huge": signed(claims(more="x" * 20_000)),
    "a signature of another token": f"{signed(claims(sub='admin')).rpartition('.')[0]}.{signed().split('.')[2]}",
    "another key": signed(key=OTHER_RSA),
    "ES256 of r and s that are none": assembled({"alg": "ES256"}, CLAIMS, b"\0" * 64),
    # -- the claims, with a valid signature
    "expired": signed(claims(exp=NOW - 11)),
    **{f"no {name}": signed(claims(name)) for name in ("exp", "aud", "iss", "sub", "scope")},
    **{f"exp {value!r}": signed(claims(exp=value)) for value in (str(NOW + 600), True, None, [NOW + 600], 10**400, -1)},
    "exp for ever": signed(claims(exp=NOW + 86_400 + 11)),
    "exp for ever, without iat": signed(claims("iat", exp=NOW + 86_400 + 11)),
    "exp that is no number": signed(raw=json.dumps(CLAIMS).replace(str(NOW + 600), "NaN").encode()),
    "exp beyond all floats": signed(raw=json.dumps(CLAIMS).replace(str(NOW + 600), "1e999").encode()),
    "not yet valid": signed(claims(nbf=NOW + 11)),
    "nbf is a text": signed(claims(nbf="0")),
    "made in the future": signed(claims(iat=NOW + 11)),
    "made in the future, to last longer": signed(claims(iat=NOW + 86_000, exp=NOW + 2 * 86_400)),
    **{f"aud {value!r}": signed(claims(aud=value)) for value in
       ("other", "", None, [], ["other"], ["onbeat", 1], [["onbeat"]], {"onbeat": 1}, "onbeat ", "ONBEAT", "onbeat,other", True)},
    **{f"iss {value!r}": signed(claims(iss=value)) for value in
       ("https://evil.example", f"{ISSUER}/", [ISSUER], None, "", ISSUER.upper(), f"{ISSUER}.evil.example")},
    **{f"sub {value!r}": signed(claims(sub=value)) for value in
       (1, None, "", "a b", "a\nb", ["ann"], {"x": 1}, "x" * 201, "ann\0", "änn", "'; --", True)},
    **{f"scope {value!r}": signed(claims(scope=value)) for value in
       (["admin"], 3, None, "", "Admin", "administrator", "admin,read", "root", {"admin": True}, "admin\tread", "*")},
    "sub twice": signed(raw=json.dumps(CLAIMS).replace('"sub": "ann"', '"sub": "ann", "sub": "admin"').encode()),
    "scope twice": signed(raw=json.dumps(CLAIMS)[:-1].encode() + b', "scope": "admin"}'),
    "claims are a list": signed(raw=b"[]"),
    "claims are a text": signed(raw=b'"admin"'),
    "claims are no JSON": signed(raw=b"{"),
    "claims are nothing": signed(raw=b""),
    "claims are too deep": signed(claims(x=json.loads("[" * 40 + "]" * 40))),
}  # fmt: skip


@pytest.mark.parametrize("token", ATTACKS.values(), ids=ATTACKS)
def test_forged_or_invalid_jwt_is_refused(checker, token):
    with pytest.raises(NotAccepted):
        checker.caller(token)


def test_table_of_jwt_attacks_is_complete():
    assert len(ATTACKS) >= 100
    assert len(set(ATTACKS.values())) >= 95


@pytest.mark.parametrize(
    "given",
    [
        {"aud": ["other", AUDIENCE]}, {"exp": NOW - 9}, {"nbf": NOW + 9}, {"iat": NOW + 9}, {"exp": NOW + 86_400}, {"exp": NOW + 0.5},
        {"scope": "read"}, {"sub": "svc:deploy@example.com"},
    ],
)  # fmt: skip
def test_unusual_but_valid_jwt_is_accepted(checker, given):
    checker.caller(signed(claims(**given)))


@pytest.mark.parametrize(
    "header", [{"kid": "2026-01"}, {"kid": "../../etc/passwd"}, {"typ": "at+jwt"}]
)
def test_key_id_of_a_jwt_is_ignored(checker, header):
    assert checker.caller(signed(header=header)).name == "jwt:ann"


@pytest.mark.parametrize(
    ("scope", "highest"),
    [("read", "read"), ("admin read", "admin"), ("read operate profile", "operate")],
)
def test_highest_scope_of_a_jwt_counts(checker, scope, highest):
    assert checker.caller(signed(claims(scope=scope))).scope == highest


def test_jwt_with_scope_admin_sees_all_owners(checker):
    assert checker.caller(signed(claims(scope="admin"))).only_owner is None
    assert checker.caller(signed()).only_owner == "ann"


def private_pem(key):
    form, none = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, form, none)


@pytest.mark.parametrize(
    ("text", "algorithm", "told"),
    [
        (b"short", "HS256", "the secret is too short, or is a public key"),
        (b"x" * 31, "HS256", "the secret is too short, or is a public key"),
        (public_pem(RSA), "HS256", "the secret is too short, or is a public key"),
        (private_pem(RSA), "RS256", "this is a private key"),
        (SECRET, "RS256", "this is not a PEM file"),
        (public_pem(KEYS["ES256"]), "RS256", "this key is of another type"),
        (public_pem(RSA), "ES256", "this key is of another type"),
        (public_pem(ec.generate_private_key(ec.SECP384R1())), "ES256", "this key is "),
        (public_pem(rsa.generate_private_key(public_exponent=65537, key_size=1024)), "RS256", "this key has fewer than 2048 bits"),
        (b"-----BEGIN PUBLIC KEY-----\ngarbage\n-----END PUBLIC KEY-----", "RS256", "this key is of another type"),
    ],
)  # fmt: skip
def test_key_of_another_algorithm_is_refused(tmp_path, text, algorithm, told):
    with pytest.raises(InvalidSettings, match=f"^jwt_key: {told}") as refused:
        Jwt(settings_with(tmp_path, text, algorithm), CLOCK)
    assert SECRET.decode() not in str(refused.value)


@pytest.mark.parametrize("name", ["jwt_issuer", "jwt_audience"])
def test_issuer_and_audience_are_required(tmp_path, name):
    with pytest.raises(InvalidSettings, match=f"^{name}: it is empty"):
        Jwt(settings_with(tmp_path, public_pem(RSA), **{name: ""}), CLOCK)


def test_missing_key_file_is_refused(tmp_path):
    made = Settings(jwt_key=str(tmp_path / "none"), jwt_issuer=ISSUER, jwt_audience=AUDIENCE)
    with pytest.raises(InvalidSettings, match="No such file"):
        Jwt(made, CLOCK)


def test_valid_token_is_admitted_from_a_throttled_address(world, tmp_path):
    (tmp_path / "key.pem").write_bytes(public_pem(RSA))
    world.open(
        jwt_key=str(tmp_path / "key.pem"), jwt_algorithm="RS256", jwt_issuer=ISSUER, jwt_audience=AUDIENCE
    )  # fmt: skip
    forged = signed(key=OTHER_RSA)
    assert {world.ask(token=forged).status for _ in range(60)} == {401, 429}
    assert world.ask(token=signed()).status == 200
