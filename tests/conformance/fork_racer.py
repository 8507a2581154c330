"""A parent and the child of a fork, which race for one issue through the store that both have open.

Run as a program: the kind of the store, its place, and how many races. Prints every race that did
not end with one grant and one refusal, and whatever else was wrong.
"""

import json
import os
import sys
from datetime import timedelta
from importlib import import_module

from dibs.core.errors import DibsError
from dibs.core.ids import IssueRef
from dibs.testing.conformance.lease_harness import bid

_TTL = timedelta(minutes=10)


def _open(kind: str, place: str):
    module = import_module(f"dibs.adapters.{kind}.leases")
    return module.EtcdLeases(place) if kind == "etcd" else module.DynamoLeases.connect(place)


def _ask(store, issue: IssueRef, run: str) -> str:
    try:
        return type(store.acquire(bid(issue, run, _TTL))).__name__
    except DibsError as failure:
        return f"{type(failure).__name__}: {failure}"


def _race(store, issue: IssueRef) -> list[str]:
    store.read(issue)  # so that there is a connection to share
    hears, says = os.pipe()
    if os.fork() == 0:
        told = _ask(store, issue, "child")
        store.close()
        os.write(says, json.dumps(told).encode())
        os._exit(0)
    told = [_ask(store, issue, "parent"), json.loads(os.read(hears, 4096))]
    os.wait()
    os.close(hears)
    os.close(says)
    return sorted(told)


def main(kind: str, place: str, races: str) -> None:
    store = _open(kind, place)
    for number in range(int(races)):
        issue = IssueRef("forked", str(number))
        told = _race(store, issue)
        record = store.read(issue)
        if told != ["Busy", "Granted"] or record is None or record.lease.issue != issue:
            print(number, told, record)
    store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
