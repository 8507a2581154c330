"""What is particular to objects: ETags, conditional writes, what other readers see."""

import contextlib
import gzip
import urllib.request
import uuid

import pytest
from botocore.exceptions import ClientError
from tests.servers.s3 import object_server

from dibs.core.errors import Misuse, Unavailable
from dibs.fencing import Applied, Conflict, Missing, Stale, objects

KEY = "reports/12.txt"


@pytest.fixture
def client():
    with contextlib.closing(object_server().client()) as made:
        yield made


@pytest.fixture
def bucket(client) -> str:
    name = f"bucket-{uuid.uuid4().hex[:12]}"
    client.create_bucket(Bucket=name)
    return name


def test_an_etag_says_nothing_of_the_metadata(client, bucket):
    """Why objects are sealed: by their ETags these two could not be told apart."""
    put = [
        client.put_object(Bucket=bucket, Key=KEY, Body=b"same", Metadata={"dibs-fence": fence})
        for fence in ("7", "8")
    ]
    assert put[0]["ETag"] == put[1]["ETag"]


def test_no_two_writes_have_the_same_etag(client, bucket):
    etags = {objects.guarded_put(client, bucket, KEY, b"same", 7).version for _ in range(5)}
    etags |= {objects.stamp(client, bucket, KEY, fence).version for fence in (8, 9)}
    assert len(etags) == 7


def test_the_server_applies_a_conditional_write_or_none(client, bucket):
    """The one thing that is asked of the store, asked of this one."""
    first = client.put_object(Bucket=bucket, Key=KEY, Body=b"1", IfNoneMatch="*")["ETag"]
    second = client.put_object(Bucket=bucket, Key=KEY, Body=b"2", IfMatch=first)["ETag"]
    for wrong in ({"IfNoneMatch": "*"}, {"IfMatch": first}):
        with pytest.raises(ClientError, match="PreconditionFailed"):
            client.put_object(Bucket=bucket, Key=KEY, Body=b"3", **wrong)
    assert client.head_object(Bucket=bucket, Key=KEY)["ETag"] == second


def test_an_object_that_is_not_there_is_made_unless_told_otherwise(client, bucket):
    assert objects.read(client, bucket, KEY) is None
    assert objects.guarded_put(client, bucket, KEY, b"x", 7, create=False) == Missing()
    assert objects.guarded_put(client, bucket, KEY, b"x", 7, version='"0"') == Missing()
    assert isinstance(objects.guarded_put(client, bucket, KEY, b"x", 7), Applied)


def test_a_stamp_counts_although_the_object_is_not_there_yet(client, bucket):
    assert isinstance(objects.stamp(client, bucket, KEY, 8), Applied)
    assert objects.guarded_put(client, bucket, KEY, b"late", 7) == Stale(8)
    assert objects.read(client, bucket, KEY) is None
    assert objects.guarded_put(client, bucket, KEY, b"x", 8, create=False) == Missing()
    assert isinstance(objects.stamp(client, bucket, KEY, 9), Applied)
    assert isinstance(objects.guarded_put(client, bucket, KEY, b"x", 9), Applied)
    assert objects.read(client, bucket, KEY).value == b"x"


def test_any_http_client_and_any_gzip_reads_it(client, bucket):
    objects.guarded_put(client, bucket, KEY, b"for all to read", 7, content_type="text/plain")
    with urllib.request.urlopen(f"{object_server().endpoint}/{bucket}/{KEY}") as reply:
        assert reply.headers["Content-Encoding"] == "gzip"
        assert reply.headers["Content-Type"] == "text/plain"
        assert reply.headers["x-amz-meta-dibs-fence"] == "7"
        assert gzip.decompress(reply.read()) == b"for all to read"


def test_an_object_that_was_there_before_is_taken_over(client, bucket):
    kept = {"ContentType": "text/csv", "CacheControl": "no-store"}
    client.put_object(Bucket=bucket, Key=KEY, Body=b"a,b", Metadata={"by": "ann"}, **kept)
    found = objects.read(client, bucket, KEY)
    assert (found.value, found.fence) == (b"a,b", 0)
    assert isinstance(objects.stamp(client, bucket, KEY, 7), Applied)
    assert objects.read(client, bucket, KEY).value == b"a,b"
    head = client.head_object(Bucket=bucket, Key=KEY)
    assert {name: head[name] for name in kept} == kept
    assert head["Metadata"]["by"] == "ann"
    assert isinstance(
        objects.guarded_put(client, bucket, KEY, b"!", 7, version=found.version), Conflict
    )


def test_an_object_in_another_encoding_is_left_alone(client, bucket):
    client.put_object(Bucket=bucket, Key=KEY, Body=b"...", ContentEncoding="br")
    for call in (
        lambda: objects.guarded_put(client, bucket, KEY, b"x", 7),
        lambda: objects.stamp(client, bucket, KEY, 7),
        lambda: objects.read(client, bucket, KEY),
    ):
        with pytest.raises(Misuse, match="br"):
            call()


def test_a_put_that_the_client_sent_twice_is_applied_once(client, bucket):
    """As botocore does when the reply is lost: the second finds what the first has put."""
    once = client.put_object

    def twice(**given):
        once(**given)
        return once(**given)

    client.put_object = twice
    first = objects.guarded_put(client, bucket, KEY, b"x", 7)
    second = objects.guarded_put(client, bucket, KEY, b"y", 7, version=first.version)
    assert isinstance(second, Applied)
    assert objects.read(client, bucket, KEY).version == second.version


def test_an_object_that_changes_all_the_time_is_given_up_at_some_point(client, bucket):
    once = client.put_object

    def overtaken(**given):
        once(Bucket=bucket, Key=KEY, Body=uuid.uuid4().bytes)
        return once(**given)

    client.put_object = overtaken
    with pytest.raises(Unavailable, match="changes faster"):
        objects.guarded_put(client, bucket, KEY, b"x", 7)


@pytest.mark.parametrize(
    ("status", "code"),
    [(409, "ConditionalRequestConflict"), (404, "NoSuchKey"), (412, "PreconditionNotMet")],
)
def test_a_race_that_is_lost_in_the_words_of_another_server_is_looked_at_again(
    client, bucket, status, code
):
    """AWS S3 answers so where the emulator answers 412 PreconditionFailed."""
    once, refused = client.put_object, []

    def refuse_first(**given):
        if not refused:
            refused.append(code)
            answer = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
            raise ClientError(answer, "PutObject")
        return once(**given)

    client.put_object = refuse_first
    assert isinstance(objects.guarded_put(client, bucket, KEY, b"x", 7), Applied)
    assert objects.read(client, bucket, KEY).value == b"x"


def test_the_clients_own_errors_go_through(client):
    with pytest.raises(ClientError, match="NoSuchBucket"):
        objects.guarded_put(client, "no-such-bucket-here", KEY, b"x", 7)
