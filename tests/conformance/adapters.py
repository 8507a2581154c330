"""Every adapter of the project, each a line: how it is opened, and what is promised of it.

Whoever changes a guarantee here changes what users may rely on. `make conformance` prints what
came of each line.
"""

from dibs.ports.leases import Guarantee

from . import harnesses
from .dynamodb_harness import dynamodb_leases
from .etcd_harness import etcd_leases
from .git_harness import git_leases, git_leases_over_github
from .github_harness import (
    comments_on_github,
    github_tracker,
    github_tracker_on_emulate,
    github_tracker_over_rest,
)
from .postgres_harness import postgres_leases
from .redis_harness import redis_cluster_leases, redis_leases

FENCED = Guarantee.FENCED | Guarantee.SERVER_CLOCK
ATOMIC = FENCED | Guarantee.ATOMIC | Guarantee.IDEMPOTENT

STORES = {
    "memory": (harnesses.memory_leases, ATOMIC | Guarantee.COUNTED),
    "sqlite": (harnesses.sqlite_leases, ATOMIC | Guarantee.COUNTED | Guarantee.DURABLE),
    "comments-on-memory": (harnesses.comments_on_memory, FENCED | Guarantee.DURABLE),
    "signed-comments-on-memory": (
        harnesses.signed_comments_on_memory,
        FENCED | Guarantee.DURABLE,
    ),
    "comments-on-one-trip": (harnesses.comments_on_one_trip, FENCED | Guarantee.DURABLE),
    "comments-on-sqlite": (harnesses.comments_on_sqlite, FENCED | Guarantee.DURABLE),
    "comments-on-github": (comments_on_github, FENCED | Guarantee.DURABLE),
    "redis": (redis_leases, ATOMIC | Guarantee.COUNTED | Guarantee.DURABLE),
    "redis-cluster": (redis_cluster_leases, ATOMIC | Guarantee.COUNTED | Guarantee.DURABLE),
    "postgres": (postgres_leases, ATOMIC | Guarantee.COUNTED | Guarantee.DURABLE),
    "etcd": (etcd_leases, ATOMIC | Guarantee.COUNTED | Guarantee.DURABLE),
    # No clock of its own: a lease is over when a client has watched it be over.
    "dynamodb": (
        dynamodb_leases,
        ATOMIC & ~Guarantee.SERVER_CLOCK | Guarantee.COUNTED | Guarantee.DURABLE,
    ),
    "git": (
        git_leases,
        ATOMIC & ~Guarantee.SERVER_CLOCK | Guarantee.COUNTED | Guarantee.DURABLE,
    ),
    # Several refs cannot be moved together there, so a limit is not kept.
    "git-over-github-api": (
        git_leases_over_github,
        ATOMIC & ~Guarantee.SERVER_CLOCK | Guarantee.DURABLE,
    ),
}

IN_ONE_STEP, IN_ONE_REQUEST = "in one step", "in one request"
CHECKS_ITSELF = "checks itself"

TRACKERS = {
    "memory": (harnesses.memory_tracker, ()),
    "memory-one-trip": (harnesses.memory_tracker_of_one_trip, (IN_ONE_REQUEST,)),
    "memory-whole-seconds": (harnesses.memory_tracker_with_seconds, ()),
    "sqlite": (harnesses.sqlite_tracker, (IN_ONE_STEP, CHECKS_ITSELF)),
    "memory-signed": (harnesses.signed_memory_tracker, ()),
    "sqlite-signed": (harnesses.signed_sqlite_tracker, (IN_ONE_STEP, CHECKS_ITSELF)),
    "memory-spoken": (harnesses.spoken_memory_tracker, ()),
    "sqlite-spoken": (harnesses.spoken_sqlite_tracker, (IN_ONE_STEP, CHECKS_ITSELF)),
    "sqlite-plain": (harnesses.plain_sqlite_tracker, ()),
    "sqlite-shelf": (harnesses.sqlite_tracker_with_a_shelf, (IN_ONE_STEP, CHECKS_ITSELF)),
    "sqlite-two-shelves": (harnesses.sqlite_tracker_with_two_shelves, (IN_ONE_STEP, CHECKS_ITSELF)),
    "github": (github_tracker, (IN_ONE_REQUEST, CHECKS_ITSELF)),
    "github-rest": (github_tracker_over_rest, (IN_ONE_REQUEST, CHECKS_ITSELF)),
    "github-emulate": (github_tracker_on_emulate, (IN_ONE_REQUEST, CHECKS_ITSELF)),
}
