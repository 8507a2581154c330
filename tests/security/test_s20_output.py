"""Actor: a handler, by malice or in a loop.

Attack: it prints without end, and fills the disk on which the backlog is.
Wall: `output_max`, 50 MB if not set; the beginning and the end stay, and the handler goes on.
"""

from .conftest import Victim
from .handlers import printed, serve, work

MOST = 50_000_000
FLOOD = """\
echo first words
head -c {count} /dev/zero | tr '\\0' 'x'
echo
head -c 2000000 /dev/zero > big-file-of-its-own
echo last words >&2
exit 3
"""


def test_the_output_is_cut_and_its_ends_stay(victim: Victim) -> None:
    serve(victim, FLOOD.format(count=80_000_000))
    done = work(victim)
    kept = printed(victim)
    assert len(kept) <= MOST + 100_000
    assert kept.startswith(b"first words\nxxx")
    assert kept.endswith(b"last words\n")
    assert b"bytes of output are left out here]" in kept
    assert "exited with 3: last words" in done.stdout + done.stderr
    assert (victim.folder / "big-file-of-its-own").stat().st_size == 2_000_000


def test_the_setting_counts_and_lines_stay_whole(victim: Victim) -> None:
    serve(victim, "seq 1 500000", top='output_max = "1MB"')
    work(victim)
    kept = printed(victim)
    assert len(kept) <= 1_000_000
    lines = kept.decode().splitlines()
    assert (lines[0], lines[-1]) == ("1", "500000")
    [left_out] = [line for line in lines if line.startswith("[dibs: ")]
    after = lines[lines.index(left_out) + 1 :]
    assert [int(line) for line in after] == list(range(int(after[0]), 500_001))
    count = int(left_out.split()[1])
    whole = sum(len(str(number)) + 1 for number in range(1, 500_001))
    assert count == whole - (len(kept) - len(left_out) - 2)


def test_control_with_a_larger_limit_all_of_it_is_kept(victim: Victim) -> None:
    serve(victim, FLOOD.format(count=80_000_000), top='output_max = "1GB"')
    work(victim)
    assert len(printed(victim)) > 80_000_000
