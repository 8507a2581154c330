"""A writer without the key cannot reuse or bend a signed mark.

The actor: a writer of the repository, or whoever has a token of one, but not DIBS_SIGNING_KEY. The
attack: copy a signed line to another issue or repository, change a field, write a field twice, sign
with a key of one's own. The wall: the signature is over kind, repository, issue and every field,
and no field may be there twice. tests/core/test_signing.py tries every character, and replays;
tests/services/test_signed_marks.py changes keys under a running fleet.
"""

import re

import pytest

from dibs.core.card import Card, CardState, render_card, render_revoke
from dibs.core.durations import parse_duration
from dibs.core.ids import HolderId, IssueRef, RunId, StageName, server_time
from dibs.core.lease import Revocation
from dibs.core.signing import Signed, Strictness, parse_keyring, sign, verify
from dibs.testing.clock import EPOCH

HERE = IssueRef("acme/shop", "7")
RING = parse_keyring("fleet:a secret that is long enough")
MARKS = {
    "card": render_card(
        Card(
            RunId("aaaaaaaaaaaa"),
            parse_duration("10m"),
            CardState.HELD,
            HolderId("worker"),
            prev=server_time(EPOCH),
            stage=StageName("ready"),
        )
    ),
    "revoke": render_revoke(Revocation(RunId("aaaaaaaaaaaa"), by="ann", reason="stop", force=True)),
}
each = pytest.mark.parametrize("body", MARKS.values(), ids=MARKS)


@each
def test_the_fleets_own_mark_holds(body):
    """Control: unchanged, in its own place."""
    assert verify(sign(body, HERE, RING), HERE, RING) is Signed.VALID


@each
@pytest.mark.parametrize("there", ["acme/shop#8", "acme/other#7", "mallory/shop#7"])
def test_elsewhere_it_does_not_hold(body, there):
    repo, _, number = there.partition("#")
    assert verify(sign(body, HERE, RING), IssueRef(repo, number), RING) is Signed.INVALID


@each
def test_no_field_can_be_written_twice_before_or_after_its_first(body):
    line, _, rest = sign(body, HERE, RING).partition("\n")
    fields = re.findall(r" ([a-z_]+)=(\S*)", line)
    assert len(fields) >= 4
    for name, value in fields:
        for doubled in (
            line.replace(f" {name}={value}", f" {name}=evil {name}={value}", 1),
            line.replace(f" {name}={value}", f" {name}={value} {name}=evil", 1),
        ):
            assert verify(f"{doubled}\n{rest}", HERE, RING) is not Signed.VALID, doubled


def test_a_changed_stage_does_not_hold():
    signed = sign(MARKS["card"], HERE, RING)
    changed = signed.replace("stage=ready", "stage=review", 1)
    assert changed != signed
    assert verify(changed, HERE, RING) is Signed.INVALID


@each
def test_a_key_of_ones_own_signs_nothing_that_counts(body):
    for own in ("fleet:mallory has a secret as well", "mallory:mallory has a secret as well"):
        assert verify(sign(body, HERE, parse_keyring(own)), HERE, RING) is Signed.INVALID
    twice = sign(body, HERE, RING).replace(" -->", f" sig=mallory:{'0' * 64} -->", 1)
    assert verify(twice, HERE, RING) is Signed.INVALID


@each
def test_unsigned_is_not_valid_in_either_mode(body):
    lenient = parse_keyring("fleet:a secret that is long enough", Strictness.LENIENT)
    assert verify(body, HERE, RING) is Signed.UNSIGNED
    assert verify(body, HERE, lenient) is Signed.UNSIGNED
