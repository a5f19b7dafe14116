"""Authorization is checked again while a long response lasts."""

from tests.web.security.test_jwt import NOW, RSA, claims, public_pem, settings_with, signed
from tests.web.security.test_middleware import cookie


def still(world):
    """Return whether the last request is still authorized."""
    return world.run(world.passed[-1][0]["state"]["is_still_authorized"]())


def test_token_is_valid_until_revoked(world):
    assert world.ask(token=world.a_token("ci")).status == 200
    assert still(world)
    world.run(world.tokens.revoke("ci"))
    assert not still(world)


def test_token_is_valid_until_it_expires(world):
    assert world.ask(token=world.a_token("ci", expires_in=60_000)).status == 200
    world.clock.advance("59s")
    assert still(world)
    world.clock.advance("1s")
    assert not still(world)


def test_session_is_valid_until_it_ends(world):
    secret = world.a_session()
    assert world.ask(headers=cookie(secret)).status == 200
    assert still(world)
    world.run(world.tokens.end_session(secret))
    assert not still(world)


def test_jwt_is_valid_until_it_expires(world, tmp_path):
    made = settings_with(tmp_path, public_pem(RSA))
    names = ("jwt_key", "jwt_algorithm", "jwt_issuer", "jwt_audience")
    world.open(**{name: getattr(made, name) for name in names})
    assert world.ask(token=signed(claims(exp=NOW + 60))).status == 200
    assert still(world)
    world.clock.advance("71s")  # clocks may differ by ten seconds
    assert not still(world)


def test_request_of_a_node_may_outlast_its_token(world):
    signer = world.run(world.tokens.signer())
    assert world.ask(token=signer.node_token(world.clock.now() + 30_000)).status == 200
    world.clock.advance("5m")
    assert still(world)


def test_revoked_credentials_are_not_counted_as_failures(world):
    assert world.ask(token=world.a_token("ci")).status == 200
    world.run(world.tokens.revoke("ci"))
    for _ in range(100):
        assert not still(world)
    assert world.ask(token=world.a_token("other")).status == 200
