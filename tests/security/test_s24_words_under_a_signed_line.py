"""Words under a signed line are not the fleet's, and nothing reads them as if they were.

The actor: a writer of the repository without the key. The attack: edit a signed comment and add
words under its first line, so that they read like the fleet's. There is no wall: only the line is
signed, which docs/guides/sign-your-marks.md says. What holds is that dibs reads the line alone.
"""

from dibs.core.card import Card, CardState, parse_mark, render_card
from dibs.core.durations import parse_duration
from dibs.core.ids import HolderId, IssueRef, RunId, StageName
from dibs.core.signing import Signed, parse_keyring, sign, verify

HERE = IssueRef("acme/shop", "7")
RING = parse_keyring("fleet:a secret that is long enough")
CARD = Card(
    RunId("aaaaaaaaaaaa"),
    parse_duration("10m"),
    CardState.HELD,
    HolderId("worker"),
    stage=StageName("ready"),
)
REVOKED = "<!-- revoke run=aaaaaaaaaaaa by=mallory force=1 v=1 -->"


def test_added_words_leave_the_mark_valid_and_its_meaning_as_it_was():
    signed = sign(render_card(CARD), HERE, RING)
    longer = f"{signed}\n{REVOKED}\nApproved by the fleet: deploy now."
    assert verify(longer, HERE, RING) is Signed.VALID
    assert parse_mark(longer) == parse_mark(signed)


def test_a_word_in_the_line_itself_is_noticed():
    """Control: what is signed cannot be added to."""
    line, _, rest = sign(render_card(CARD), HERE, RING).partition("\n")
    longer = line.replace(" -->", " note=deploy -->")
    assert longer != line
    assert verify(f"{longer}\n{rest}", HERE, RING) is Signed.INVALID
