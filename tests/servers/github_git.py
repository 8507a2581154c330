"""GitHub's endpoints for commits and refs, as a process on real bare repositories.

A fake, and no more than what the lease store uses; but git itself decides whether a ref is there
and what is a fast-forward, under its own locks, and what was written outlives the process. Texts
and codes are GitHub's as documented. `TOKEN` may read and write, `READER` may only read, `HASTY`
has asked too often. A file `knows-no-empty-tree` in a repository makes it refuse that tree. A
file `lose` in the folder holds a piece of each request whose reply is lost.
"""

import json
import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from .git_http import loses
from .git_repository import ALONE, bare_repository
from .process import ServerProcess, answers, free_port

ROOT = Path(__file__).parents[2]
TOKEN, READER, HASTY = "may-write", "may-read", "asks-too-often"
EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
NONE = "0" * 40
PAGE = 100


class GithubServer(ServerProcess):
    """Serves `OWNER/REPO.git` under its folder as `/repos/OWNER/REPO`."""

    def __init__(self) -> None:
        super().__init__("github")
        self.port = free_port()
        self.begin()

    def begin(self) -> None:
        command = (sys.executable, "-m", __name__, self.folder, str(self.port))
        self.start(command, lambda: answers(self.port), cwd=ROOT)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def repository(self, name: str) -> Path:
        return bare_repository(self.folder / f"{name}.git")


class Problem(Exception):
    def __init__(self, status: int, message: str, **headers: str) -> None:
        self.status, self.message, self.headers = status, message, headers
        super().__init__(message)


class Repository:
    """What the endpoints do, by git."""

    def __init__(self, where: Path) -> None:
        self.where = where
        if not where.is_dir():
            raise Problem(404, "Not Found")

    def matching(self, prefix: str) -> list[dict[str, object]]:
        listed = self._git("for-each-ref", "--format=%(refname) %(objectname)")[1]
        pairs = [line.split() for line in listed.splitlines()]
        return [_ref(ref, sha) for ref, sha in pairs if ref.startswith(f"refs/{prefix}")]

    def commit(self, sha: str) -> dict[str, object]:
        code, text = self._git("cat-file", "commit", sha)
        if code:
            raise Problem(404, "Not Found")
        return {"sha": sha, "message": text.partition("\n\n")[2]}

    def newest(self) -> list[dict[str, object]]:
        sha, tree = self._git("log", "-1", "--format=%H %T", "refs/heads/main")[1].split()
        return [{"sha": sha, "commit": {"tree": {"sha": tree}}}]

    def make_commit(self, wanted: dict) -> dict[str, object]:
        ignorant = (self.where / "knows-no-empty-tree").exists()
        if (ignorant and wanted["tree"] == EMPTY_TREE) or not self._has(wanted["tree"], "tree"):
            raise Problem(422, "Tree SHA does not exist")
        parents = wanted.get("parents", [])
        if not all(self._has(parent, "commit") for parent in parents):
            raise Problem(422, "Parent SHA does not exist or is not a commit object")
        words = [word for parent in parents for word in ("-p", parent)]
        _, made = self._git("commit-tree", wanted["tree"], *words, given=wanted["message"])
        return {"sha": made.strip(), "message": wanted["message"]}

    def make_ref(self, wanted: dict) -> dict[str, object]:
        ref, sha = wanted["ref"], wanted["sha"]
        if not ref.startswith("refs/") or ref.count("/") < 2:
            raise Problem(422, "Reference name must start with 'refs/'")
        if not self._has(sha, "commit"):
            raise Problem(422, "Object does not exist")
        if self._git("update-ref", ref, sha, NONE)[0]:
            raise Problem(422, "Reference already exists")
        return _ref(ref, sha)

    def move_ref(self, ref: str, wanted: dict) -> dict[str, object]:
        sha = wanted["sha"]
        code, old = self._git("rev-parse", "--verify", "--quiet", ref)
        if code:
            raise Problem(422, "Reference does not exist")
        if not self._has(sha, "commit"):
            raise Problem(422, "Object does not exist")
        if not wanted.get("force") and self._git("merge-base", "--is-ancestor", old, sha)[0]:
            raise Problem(422, "Update is not a fast forward")
        if self._git("update-ref", ref, sha, old)[0]:  # moved since we looked
            raise Problem(422, "Reference update failed")
        return _ref(ref, sha)

    def drop_ref(self, ref: str) -> None:
        if self._git("rev-parse", "--verify", "--quiet", ref)[0]:
            raise Problem(422, "Reference does not exist")
        self._git("update-ref", "-d", ref)

    def _has(self, sha: str, kind: str) -> bool:
        return self._git("cat-file", "-t", sha)[1] == kind

    def _git(self, *words: str, given: str = "") -> tuple[int, str]:
        done = subprocess.run(
            ["git", "-C", str(self.where), *words],
            input=given.encode(),
            capture_output=True,
            timeout=60,
            check=False,
            env={**os.environ, **ALONE},
        )
        text = done.stdout.decode()
        return done.returncode, text if words[0] == "cat-file" and words[
            1
        ] != "-t" else text.strip()


def _ref(ref: str, sha: str) -> dict[str, object]:
    return {"ref": ref, "object": {"type": "commit", "sha": sha}}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    folder: Path

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            self._admit()
            status, answer, headers = self._answer(json.loads(body) if body else {})
        except Problem as problem:
            status, headers = problem.status, problem.headers
            answer = {"message": problem.message}
        if loses(self.folder, f"{self.command} {self.path} {body.decode()}"):
            self.close_connection = True
            return
        raw = b"" if answer is None else json.dumps(answer).encode()
        self.send_response(status)
        for name, text in {**headers, "Content-Length": str(len(raw))}.items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(raw)

    do_GET = do_POST = do_PATCH = do_DELETE = _serve  # noqa: N815 - the server's names

    def _admit(self) -> None:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token == HASTY:
            raise Problem(403, "You have exceeded a secondary rate limit.", **{"Retry-After": "7"})
        if token not in (TOKEN, READER):
            raise Problem(401, "Bad credentials")
        if token == READER and self.command != "GET":
            raise Problem(403, "Resource not accessible by personal access token")

    def _answer(self, wanted: dict) -> tuple[int, object, dict[str, str]]:
        parts = urlsplit(self.path)
        _, _, owner, name, *rest = unquote(parts.path).split("/")
        repository = Repository(self.folder / owner / f"{name}.git")
        match self.command, rest:
            case "GET", ["git", "matching-refs", *prefix]:
                return self._page(repository.matching("/".join(prefix)), parts.query)
            case "GET", ["git", "commits", sha]:
                return 200, repository.commit(sha), {}
            case "GET", ["commits"]:
                return 200, repository.newest(), {}
            case "POST", ["git", "commits"]:
                return 201, repository.make_commit(wanted), {}
            case "POST", ["git", "refs"]:
                return 201, repository.make_ref(wanted), {}
            case "PATCH", ["git", "refs", *ref]:
                return 200, repository.move_ref("/".join(("refs", *ref)), wanted), {}
            case "DELETE", ["git", "refs", *ref]:
                repository.drop_ref("/".join(("refs", *ref)))
                return 204, None, {}
        raise Problem(404, "Not Found")

    def _page(self, found: list, query: str) -> tuple[int, object, dict[str, str]]:
        number = int(query.removeprefix("page=") or 1)
        rest, headers = found[(number - 1) * PAGE :], {}
        if len(rest) > PAGE:
            path = f"http://{self.headers['Host']}{urlsplit(self.path).path}"
            headers = {"Link": f'<{path}?page={number + 1}>; rel="next"'}
        return 200, rest[:PAGE], headers


if __name__ == "__main__":
    _Handler.folder = Path(sys.argv[1])
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), _Handler).serve_forever()
