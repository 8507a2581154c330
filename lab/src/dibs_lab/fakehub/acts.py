"""All changes that a viewer can make in the fake's world; each group of acts has its own file."""

from .acts_on_comments import CommentActs
from .acts_on_pulls import PullActs
from .acts_on_repositories import RepositoryActs
from .changing import KEEP, Keep

__all__ = ["KEEP", "Acts", "Keep"]


class Acts(PullActs, CommentActs, RepositoryActs):
    """The acts of one viewer. Make it with `State.acting(viewer)`."""
