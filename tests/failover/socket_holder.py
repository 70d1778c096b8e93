# SPDX-License-Identifier: Apache-2.0
"""Holds an engine's socket, journal and parked connections as berthd and its keeper do, and starts
engines on them."""

import os
import signal
import socket
import subprocess

JOURNAL_BYTES = 256 << 20
NAMES = ("berth-listen", "berth-journal", "berth-parked-in", "berth-parked-out")

# Numbers that the started process needs must not be somebody else's here.
_spare = [os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)]
while _spare[-1] < 16:
    _spare.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))


class SocketHolder:
    def __init__(self, journal_bytes=JOURNAL_BYTES, address=("127.0.0.1", 0), keeps=True):
        if isinstance(address, str):
            self.listener = socket.socket(socket.AF_UNIX)
            self.listener.bind(address)
        else:
            self.listener = socket.socket(socket.AF_INET)
            self.listener.bind(address)
        self.listener.listen(1024)
        self.address = self.listener.getsockname()
        self.journal = os.memfd_create("journal", os.MFD_CLOEXEC)
        os.ftruncate(self.journal, journal_bytes)
        self.pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        fds = [self.listener.fileno(), self.journal, self.pair[0].fileno(), self.pair[1].fileno()]
        self.fds = list(zip(NAMES, fds))[: 4 if keeps else 1]
        self.generation = 0
        self.running = []

    def start(self, command, environment=None, names=None, **more):
        """A process that inherits the descriptors, by the LISTEN_FDS convention."""
        passed = [(name, fd) for name, fd in self.fds if names is None or name in names]
        added = {"LISTEN_FDS": str(len(passed)), "LISTEN_FDNAMES": ":".join(n for n, _ in passed),
                 **(environment or {})}

        def in_child():
            for number, (_, fd) in enumerate(passed):
                os.dup2(fd, 3 + number, inheritable=True)
            os.environ.update(added)
            os.environ["LISTEN_PID"] = str(os.getpid())

        process = subprocess.Popen(command, preexec_fn=in_child, close_fds=False, **more)
        self.running.append(process)
        return process

    def kill(self, process):
        process.send_signal(signal.SIGKILL)
        process.wait()

    def journal_bytes_used(self):
        """What of the journal has memory behind it."""
        found, at, size = b"", 0, os.fstat(self.journal).st_size
        while at < size:
            try:
                at = os.lseek(self.journal, at, os.SEEK_DATA)
            except OSError:
                break
            end = os.lseek(self.journal, at, os.SEEK_HOLE)
            found += os.pread(self.journal, end - at, at)
            at = end
        return found

    def close(self):
        for process in self.running:
            if process.poll() is None:
                process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        self.listener.close()
        os.close(self.journal)
        for end in self.pair:
            end.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
