"""What a call of the published API answers: a yes or a no as before, and now why."""

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, Self

from dibs.core.eligibility import Reason, ReasonCode
from dibs.core.errors import BadConfiguration, DibsError

if TYPE_CHECKING:
    from dibs.label_state.firings import Firing

_Said = ParamSpec("_Said")


class NoOrganisation(BadConfiguration, RuntimeError):
    """A repository was named without its owner, and GH_ORG does not say whose it is."""

    code = "NO_ORGANISATION"
    hint = "name it as OWNER/REPO, or set GH_ORG"


class Answer(int):
    """True or False, with a reason.

    Equal to the bool, true and false like it, and hashed like it. Not `is True`: nothing but True
    itself is, and Python lets nobody derive from bool.
    """

    reason: str
    """A code for programs; empty where the answer is plainly yes."""
    text: str
    """The same for people."""
    codes: tuple[str, ...]
    """Every reason, where there are several."""
    lease: "Firing | None"
    """With a claim that was granted: what holds it, renewed while this process lives."""

    def __new__(
        cls,
        yes: bool,  # noqa: FBT001 - it is what the answer is
        reason: str = "",
        text: str = "",
        *,
        codes: tuple[str, ...] = (),
        lease: "Firing | None" = None,
    ) -> Self:
        made = super().__new__(cls, yes)
        made.reason, made.text = reason, text
        made.codes = codes or ((reason,) if reason else ())
        made.lease = lease
        return made

    def __repr__(self) -> str:
        return str(bool(self)) if not self.reason else f"<{bool(self)}: {self.reason}: {self.text}>"

    def __str__(self) -> str:
        return str(bool(self))

    def __reduce__(self) -> tuple[Callable[..., "Answer"], tuple[bool, str, str]]:
        return Answer, (bool(self), self.reason, self.text)


def refused(reasons: tuple[Reason, ...]) -> Answer:
    """The most telling first: a label without a card says less than anything else."""
    told = sorted(reasons, key=lambda reason: reason.code is ReasonCode.CLAIM_LABEL_ONLY)
    codes = tuple(reason.code.value for reason in told)
    return Answer(False, codes[0], "; ".join(reason.text for reason in told), codes=codes)


def answering(call: Callable[_Said, Answer]) -> Callable[_Said, Answer]:
    """What goes wrong at the tracker is a no that says so: these calls have never raised for it.

    A slug that names nothing still raises: that is a mistake of the caller's.
    """

    @wraps(call)
    def answer(*args: _Said.args, **kwargs: _Said.kwargs) -> Answer:
        try:
            return call(*args, **kwargs)
        except NoOrganisation:
            raise
        except DibsError as error:
            return Answer(False, error.code, str(error))

    return answer
