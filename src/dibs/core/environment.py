"""Which variables of a worker's environment reach the handler of a stage.

A handler is the least trusted process here. It gets the variables of a short list, and those that
its stage names in `pass_env`; with `env = "inherit"` all but the credentials of dibs. The key that
signs marks reaches no handler in any way: it would sign anything in the fleet's name.
"""

import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase

from dibs.core.pipeline import Env

LISTED_NAMES = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "XDG_*"),
    *("LANG", "LANGUAGE", "LC_*", "TZ", "TERM", "COLORTERM", "NO_COLOR", "CI"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    *("NODE_EXTRA_CA_CERTS", "NIX_SSL_CERT_FILE", "PIP_CERT", "AWS_CA_BUNDLE", "GIT_SSL_CAINFO"),
    *("*_PROXY", "*_proxy"),
    *("VIRTUAL_ENV", "PYTHONPATH", "PYTHONPYCACHEPREFIX", "PYTHONUNBUFFERED", "PYTHONUTF8"),
    *(
        "LD_LIBRARY_PATH",
        "JAVA_HOME",
        "GOPATH",
        "CARGO_HOME",
        "RUSTUP_HOME",
        "NVM_DIR",
        "PYENV_ROOT",
    ),
    *("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL"),
    *("GITHUB_API_URL", "DIBS_ACTOR", "DIBS_STATE", "ALFRED_HOME"),
)
SECRET_NAMES = (
    "GITHUB_TOKEN",
    "GH_TOKEN",
    "GH_ENTERPRISE_TOKEN",
    "GITHUB_ENTERPRISE_TOKEN",
    "GITLAB_TOKEN",
    "GITEA_TOKEN",
    "FORGEJO_TOKEN",
    "JIRA_API_TOKEN",
    "LINEAR_API_KEY",
    "SLACK_BOT_TOKEN",
    "GITHUB_APP_PRIVATE_KEY*",
    "GITHUB_WEBHOOK_SECRET",
    "DIBS_LEASES",
    "DIBS_*_TOKEN",
    "DIBS_*_KEY",
    "DIBS_FAILPOINT",
    "DIBS_OPERATOR",
    "CREDENTIALS_DIRECTORY",
)
"""Credentials for trackers and stores. So is each of them with `_FILE` behind its name."""
NEVER_PASSED = ("DIBS_SIGNING_KEY", "DIBS_SIGNING_KEY_FILE")
_LIKE_SECRETS = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|COOKIE|BEARER|CONNECTION_?STRING|WEBHOOK"
    r"|(?<!MON|DON|TUR|HOC)KEY(?!BOARD|WORD|MAP)"
    r"|(?:^|_)(?:PASS|PAT|PW|PWD|AUTH|URL|URI|DSN|ASKPASS|LEASES|FAILPOINT)(?:_|$)"
    r"|^(?:GIT_CONFIG|KUBECONFIG|DOCKER_CONFIG|NETRC|PGPASS|DIBS_OPERATOR)",
    re.IGNORECASE,
)


def looks_secret(name: str) -> bool:
    """Whether a variable with the name may hold a credential, or lead to a credential.

    The only rule: for variables kept from handlers, for warnings of `dibs doctor`, and for values
    to mask (`core.words`).
    """
    return name not in LISTED_NAMES and _LIKE_SECRETS.search(name) is not None


def passed_on(
    environment: Mapping[str, str],
    env: Env,
    pass_env: tuple[str, ...],
    may_pass: Callable[[str], bool] = lambda _: True,
) -> dict[str, str]:
    """The variables for a handler. The address of a proxy loses account and password.

    `may_pass`: whether the operator lets a credential go to handlers.
    """
    kept = {}
    for name, text in environment.items():
        plain = name.removesuffix("_FILE")
        ours = any(fnmatchcase(one, secret) for one in (name, plain) for secret in SECRET_NAMES)
        if name in NEVER_PASSED:
            continue
        if name in pass_env and may_pass(name):
            kept[name] = text
            continue
        if env is Env.LISTED:
            listed = any(fnmatchcase(name, pattern) for pattern in LISTED_NAMES)
            fits = listed and not looks_secret(name)
        else:
            fits = not ours and (not looks_secret(name) or may_pass(name))
        if fits and name.lower().endswith("_proxy") and "@" in text:
            account, _, host = text.rpartition("@")
            scheme, separator, _ = account.partition("://")
            kept[name] = f"{scheme}://{host}" if separator else host
        elif fits:
            kept[name] = text
    return kept
