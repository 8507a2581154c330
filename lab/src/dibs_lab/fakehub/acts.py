"""Everything somebody can do to the fake's world, gathered: each group of acts has its file."""

from .acts_on_comments import CommentActs
from .acts_on_pulls import PullActs
from .acts_on_repositories import RepositoryActs
from .changing import KEEP, Keep

__all__ = ["KEEP", "Acts", "Keep"]


class Acts(PullActs, CommentActs, RepositoryActs):
    """What one viewer does. Make it with `State.acting(viewer)`."""
