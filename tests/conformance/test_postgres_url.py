"""What the URL of a PostgreSQL store means, and what of it is never shown."""

import pytest

from dibs.adapters.postgres.database import demanded_proof, parse_postgres_url
from dibs.core.errors import BadConfiguration

SECRET = "s3cr3t"


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("postgresql://db/app", "postgresql://db/app"),
        ("postgres://db:6432/app", "postgres://db:6432/app"),
        (f"postgresql://ada:{SECRET}@db/app?sslmode=require", "postgresql://db/app"),
        (f"postgresql://db/app?user=ada&password={SECRET}", "postgresql://db/app"),
        ("postgresql://a:1,b:2/app", "postgresql://a:1,b:2/app"),
        ("postgresql://[::1]:5432/app", "postgresql://[::1]:5432/app"),
        ("postgresql:///app?host=/run/postgresql", "postgresql:///app"),
        (f"postgresql://ada:{SECRET}%2F%40@db/app", "postgresql://db/app"),
    ],
)
def test_a_name_has_no_user_no_password_and_no_options(url, name):
    parsed = parse_postgres_url(url)
    assert parsed.name == name
    assert SECRET not in repr(parsed)


def test_what_is_libpqs_passes_through_and_what_is_ours_does_not():
    parsed = parse_postgres_url(
        "postgresql://ada:a%2Fb@db:6432/app?sslmode=verify-full&namespace=fleet%20two&timeout=2.5"
        "&application_name=dibs%20ci&connect_timeout=9"
    )
    assert (parsed.namespace, parsed.timeout_s) == ("fleet two", 2.5)
    told = parsed.parameters
    assert {
        key: told[key] for key in ("user", "password", "host", "port", "dbname", "sslmode")
    } == {
        "user": "ada",
        "password": "a/b",
        "host": "db",
        "port": "6432",
        "dbname": "app",
        "sslmode": "verify-full",
    }
    assert (told["application_name"], told["connect_timeout"]) == ("dibs ci", "9")
    assert told["tcp_user_timeout"] == "2500"
    assert "namespace" not in told
    assert "target_session_attrs" not in told


def test_of_several_servers_the_one_that_takes_writes_is_wanted():
    assert parse_postgres_url("postgresql://a,b/app").parameters["target_session_attrs"] == (
        "read-write"
    )
    chosen = parse_postgres_url("postgresql://a,b/app?target_session_attrs=primary")
    assert chosen.parameters["target_session_attrs"] == "primary"


def test_by_default_there_is_no_namespace_and_five_seconds():
    parsed = parse_postgres_url("postgresql://db/app")
    assert (parsed.namespace, parsed.timeout_s) == (None, 5.0)


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://ada:{SECRET}/x@db/app",
        f"postgresql://ada:{SECRET}?x@db/app",
        f"postgresql://ada:{SECRET}#x@db/app",
        f"postgresql://ada:{SECRET}%zz@db/app",
        f"postgresql://ada:{SECRET}@db:port/app",
        f"postgresql://ada:{SECRET}@[db/app",
        f"mysql://ada:{SECRET}@db/app",
        f"postgresql://ada:{SECRET}@db/app?nonsense=1",
        f"postgresql://ada:{SECRET}@db/app?timeout=soon",
        f"postgresql://ada:{SECRET}@db/app?timeout=0",
        f"postgresql://ada:{SECRET}@db/app?timeout=nan",
        f"postgresql://ada:{SECRET}@db/app?namespace=",
        f"postgresql://ada:{SECRET}@db/app?namespace={'x' * 64}",
        f"postgresql://ada:{SECRET}@db/app?namespace=%00",
    ],
)
def test_what_cannot_be_meant_is_refused_without_the_password(url):
    with pytest.raises(BadConfiguration) as told:
        parse_postgres_url(url)
    assert SECRET not in str(told.value)
    assert told.value.__cause__ is None
    assert told.value.__suppress_context__ or told.value.__context__ is None


@pytest.mark.parametrize(
    ("given", "environment", "demanded"),
    [
        ({}, {}, False),
        ({"host": "localhost"}, {}, False),
        ({"host": "/run/postgresql"}, {}, False),
        ({"host": "127.0.0.1,::1"}, {}, False),
        ({"host": "db"}, {}, True),
        ({"host": "127.0.0.1,db"}, {}, True),
        ({"host": "localhost", "hostaddr": "10.0.0.1"}, {}, True),
        ({"host": "db", "hostaddr": "127.0.0.1"}, {}, False),
        ({}, {"PGHOST": "db"}, True),
        ({"host": "localhost"}, {"PGHOST": "db"}, False),
        ({"host": "db", "sslmode": "prefer"}, {}, False),
        ({"host": "db"}, {"PGSSLMODE": "require"}, False),
        ({"host": "db"}, {"PGSSLMODE": ""}, True),
        ({"host": "db", "service": "nowhere"}, {"PGSERVICEFILE": "/nonexistent"}, True),
    ],
)
def test_a_server_on_another_machine_must_prove_its_name(given, environment, demanded):
    proof = demanded_proof(given, environment)
    assert proof.get("sslmode") == ("verify-full" if demanded else None)
    assert demanded or not proof
