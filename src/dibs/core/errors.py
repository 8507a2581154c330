"""The error tree, by who must act.

    DibsError
    ├── Misuse                    the caller asked for something that cannot be
    │   ├── BadReference          not a spelling of an issue
    │   ├── NoSuchIssue           the tracker does not have it
    │   ├── NoSuchComment         the issue does not have it (any more)
    │   ├── IssueMoved            it is in another repository by now
    │   ├── IssueHidden           this token may not read all of it
    │   ├── IssueLocked           its conversation is locked, and we may not write there
    │   ├── BadTtl                a lease cannot run that long, or that short
    │   ├── BadName               not a name for a hold or a loop
    │   ├── CannotMove            the leases are not where they were said to be
    │   ├── IllegalMove           the pipeline has no such transition
    │   └── NoSuchStage           the pipeline has no such stage
    ├── NotGranted                a lease that was insisted on could not be had
    ├── LeaseLost                 the work must stop; another may hold the issue by now
    ├── GrantedElsewhere          another store grants: this one knows nothing of what is held
    ├── BadConfiguration          the operator must change a setting
    │   └── Untrusted             a found file sets what only the operator may set
    ├── Unwritable                a file or stream of the caller's cannot be read or written
    ├── HandlerUnusable           the operator must mend the handler (missing, not executable)
    └── Outage                    the tracker or the store did not do its part
        ├── Unavailable           try again later
        │   ├── Unconfirmed           refused, but perhaps by mistake: nothing was done
        │   └── WorktreeUnavailable   no working tree could be made for a run now
        ├── RateLimited           try again after `retry_after_s`
        ├── NotPermitted          trying again will not help; a person must change access
        └── Damaged               trying again will not help; a person must repair the storage

Losing a race, a shut gate or an empty backlog are not errors: they are values. Error text names the
fact, the fields and a safe next look. It never offers a destructive command: agents paste what
they read.
"""

from dibs.core.ids import Fence, IssueRef, StageName


class DibsError(Exception):
    """Something dibs promised could not be done."""

    code: str = "ERROR"
    hint: str = ""


class Misuse(DibsError):
    """The caller asked for an impossible operation."""

    code = "MISUSE"


class BadReference(Misuse):
    """The text is not a spelling of an issue."""

    code = "BAD_REFERENCE"
    hint = "write an issue as 123, #123, owner/repo#123, ABC-123 or the issue's URL"

    def __init__(self, text: str, why: str = "does not name an issue") -> None:
        self.text = text
        super().__init__(f"{text!r} {why}")


class NoSuchIssue(Misuse):
    """The tracker does not have this issue."""

    code = "NO_SUCH_ISSUE"
    hint = "look at the backlog with: dibs list --all"

    def __init__(self, issue: IssueRef) -> None:
        self.issue = issue
        super().__init__(f"the tracker has no issue {issue}")


class NoSuchComment(Misuse):
    """The issue does not have this comment, or not any more."""

    code = "NO_SUCH_COMMENT"
    hint = "somebody may have deleted the comment; look at the issue with: dibs show ISSUE"

    def __init__(self, issue: IssueRef, comment: int) -> None:
        self.issue, self.comment = issue, comment
        super().__init__(f"{issue} has no comment {comment}")


class IssueMoved(NoSuchIssue):
    """The issue was transferred: it has another number in another repository now."""

    code = "ISSUE_MOVED"
    hint = "only its comments moved with it, and nothing else of dibs; look at the issue there"

    def __init__(self, issue: IssueRef, where: str) -> None:
        super().__init__(issue)
        self.where = where
        self.args = (f"{issue} was transferred to {where}",)


class IssueHidden(NoSuchIssue):
    """The tracker has the issue, and refuses to show this token a part of it."""

    code = "ISSUE_HIDDEN"
    hint = "workers leave the issue alone; look at it in the tracker, with the token's account"

    def __init__(self, issue: IssueRef, why: str) -> None:
        super().__init__(issue)
        self.why = why
        self.args = (f"{issue} cannot be read with this token: {why}",)


class IssueLocked(Misuse):
    """The issue's conversation takes no comments, from this account or from any."""

    code = "ISSUE_LOCKED"
    hint = "ask somebody with write access to unlock the conversation, or to work the issue"

    def __init__(
        self,
        issue: IssueRef,
        why: str = "is locked, and this account may not write",
        hint: str = "",
    ) -> None:
        self.issue = issue
        self.hint = hint or self.hint
        super().__init__(f"the conversation of {issue} {why}")


class NoSuchStage(Misuse):
    """The pipeline has no stage of this name."""

    code = "NO_SUCH_STAGE"
    hint = "look at the stages with: dibs config show"

    def __init__(self, stage: str, known: tuple[StageName, ...]) -> None:
        self.stage, self.known = stage, known
        super().__init__(f"the pipeline has no stage {stage!r}; its stages are {', '.join(known)}")


class BadTtl(Misuse):
    """A lease cannot run that long, or that short."""

    code = "BAD_TTL"
    hint = "look at the limits with: dibs config show"


class BadName(Misuse):
    """The text is not a name for a hold or a loop."""

    code = "BAD_NAME"
    hint = "a name is a letter, then up to 63 letters, digits, dots, dashes and underscores"

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"{name[:80]!r} is not a name for a hold or a loop")


class CannotMove(Misuse):
    """The leases are not where they were said to be."""

    code = "CANNOT_MOVE"
    hint = "look at which store grants with: dibs leases show"


class IllegalMove(Misuse):
    """The pipeline has no such transition."""

    code = "ILLEGAL_MOVE"
    hint = "look at the legal moves with: dibs config show"

    def __init__(self, origin: StageName, target: str, legal: tuple[StageName, ...]) -> None:
        self.origin, self.target, self.legal = origin, target, legal
        onward = f"it may move to {', '.join(legal)}" if legal else "it may move nowhere"
        super().__init__(f"an issue in {origin!r} may not move to {target!r}; {onward}")


class NotGranted(DibsError):
    """A lease that the caller insisted on could not be had."""

    code = "NOT_GRANTED"
    hint = "look at every reason with: dibs why ISSUE"

    def __init__(self, issue: IssueRef, why: str, *, codes: tuple[str, ...] = ()) -> None:
        self.issue, self.why, self.codes = issue, why, codes
        super().__init__(f"the lease on {issue} was not granted: {why}")


class LeaseLost(DibsError):
    """The lease is no longer ours, so the work must stop and write nothing more."""

    code = "LEASE_LOST"
    hint = "another holder may be at work by now; read the issue again before doing anything"

    def __init__(self, issue: IssueRef, *, fence: Fence, why: str) -> None:
        self.issue, self.fence, self.why = issue, fence, why
        super().__init__(f"{issue}: the lease with fence {fence} is lost: {why}")


class NoSuchRun(DibsError):
    """No live lease belongs to the run: its lease expired or was ended, or never existed."""

    code = "NO_SUCH_RUN"
    hint = "stop the work of this run; read the issue again with: dibs show ISSUE"

    def __init__(self, run: str) -> None:
        self.run = run
        super().__init__(f"run {run} holds no issue: its lease expired or was ended, or never was")


class HandlerMayNot(DibsError):
    """The command is not for handlers: it decides for others, or acts for another run."""

    code = "HANDLER_MAY_NOT"
    hint = "leave it to a person: exit with 77, or dibs release --outcome parked --note QUESTION"

    def __init__(self, message: str, *, hint: str = "") -> None:
        """`hint`: empty if a person has to decide it."""
        self.hint = hint or self.hint
        super().__init__(message)


class GrantedElsewhere(DibsError):
    """Another store grants leases now: the records of the configured store do not count."""

    code = "GRANTED_ELSEWHERE"
    hint = "look at which store grants with: dibs leases show"


class BadConfiguration(DibsError):
    """A setting is wrong, or two settings contradict each other."""

    code = "BAD_CONFIGURATION"

    def __init__(self, message: str, *, hint: str = "") -> None:
        """`hint`: empty unless there is more to look at than the setting that the message names."""
        self.hint = hint or self.hint
        super().__init__(message)


class NoBacklog(BadConfiguration):
    """The embedded backlog was never made, or its file is gone or was emptied."""

    code = "NO_BACKLOG"
    hint = "dibs config show says which settings name it; dibs init or dibs add makes a new one"


class Untrusted(BadConfiguration):
    """A configuration found by searching has a setting which is the operator's to set."""

    code = "UNTRUSTED"


class Unwritable(DibsError):
    """A file or stream that the caller named cannot be read or written."""

    code = "UNWRITABLE"
    hint = "look at the path, its permissions and the space left"


class HandlerUnusable(DibsError):
    """A stage's handler cannot be started at all. The issue is not to blame."""

    code = "HANDLER_UNUSABLE"
    hint = "correct the stage's run, python, worktree or run_as setting; no attempt was counted"


class Outage(DibsError, RuntimeError):
    """The tracker or the lease store did not do its part."""

    code = "OUTAGE"
    retryable = False


class Unavailable(Outage):
    """The tracker or the store did not answer, or is busy; trying again later may help."""

    code = "UNAVAILABLE"
    retryable = True


class Unconfirmed(Unavailable):
    """The tracker refused, and may not mean it. Nothing was done; a later try may pass."""

    code = "UNCONFIRMED"
    hint = "try again in some seconds: a refusal that lasts is reported as NOT_PERMITTED"


class WorktreeUnavailable(Unavailable):
    """No working tree could be made for a run, and that may change by itself."""

    code = "WORKTREE_UNAVAILABLE"
    hint = "the issue was given back, and no attempt was counted"


class RateLimited(Outage):
    """The tracker asks to slow down."""

    code = "RATE_LIMITED"
    retryable = True

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(message)


class NotPermitted(Outage):
    """The tracker or the file system refuses; a person must change access."""

    code = "NOT_PERMITTED"


class Damaged(Outage):
    """The storage is full, unreadable or not what it should be; a person must repair it."""

    code = "DAMAGED"
