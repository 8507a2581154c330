"""The interpreter's own threads, none of which keeps the process alive."""

import threading
from collections.abc import Callable


class SystemThread:
    def __init__(self, work: Callable[[], None], name: str) -> None:
        self._thread = threading.Thread(target=work, name=name, daemon=True)
        self._thread.start()

    def join(self) -> None:
        if self._thread is not threading.current_thread():
            self._thread.join()


class SystemThreads:
    def start(self, work: Callable[[], None], name: str) -> SystemThread:
        return SystemThread(work, name)
