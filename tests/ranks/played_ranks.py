# SPDX-License-Identifier: Apache-2.0
"""berthd's side of an instance of several ranks, played by a test: a connection, a grant and a part
of the weights for each rank."""

import contextlib
import fcntl
import mmap
import os
import pathlib
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "system"))

from played_daemon import PlayedDaemon, load_weights


class GatePage:
    """The gate of one device (gate_page.h), with one raiser of the highest class."""

    BYTES, SLOT, SLOT_BYTES = 4096, 64, 64

    def __init__(self):
        self.fd = os.memfd_create("berth-gate", os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, self.BYTES)
        self.page = mmap.mmap(self.fd, self.BYTES)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
        struct.pack_into("<4I", self.page, 0, 0x42475431, 1, 0, 0)
        struct.pack_into("<2Iq", self.page, self.SLOT, 0, os.getpid(), 1000)
        # struct flock: a write lock of the slot, which this descriptor holds.
        fcntl.fcntl(self.fd, fcntl.F_OFD_SETLK,
                    struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, self.SLOT, self.SLOT_BYTES,
                                0))
        self.watched = os.open(f"/proc/self/fd/{self.fd}", os.O_RDONLY)
        self.generation = 0

    def close(self, closed):
        self.generation += 1
        struct.pack_into("<I", self.page, self.SLOT, int(closed))
        struct.pack_into("<I", self.page, 8, self.generation)


class PlayedRank(PlayedDaemon):
    parts = {}  # of all tests: each loaded once

    def __init__(self, folder, grant, rank, ranks, arguments):
        self.rank, self.ranks, self.gate = rank, ranks, GatePage()
        home = folder / f"rank{rank}"
        home.mkdir()
        environment = {"BERTH_RANK": str(rank), "BERTH_RANKS": str(ranks), "GOMP_SPINCOUNT": "0",
                       "BERTH_RENDEZVOUS": f"file://{folder / 'rendezvous'}"}
        super().__init__(home, grant, ["--threads", "1", "--block-tokens", "16",
                                       *(arguments if rank == 0 else ())], environment)

    def gate_fds(self):
        return (self.gate.watched,)

    def weights_for(self, environment):
        key = (self.rank, self.ranks)
        if key not in PlayedRank.parts:
            more = ["--tp", str(self.ranks), "--ranks", str(self.rank)]
            PlayedRank.parts[key] = load_weights(environment, more=more)
        return PlayedRank.parts[key]


class PlayedCrew(contextlib.ExitStack):
    """All ranks, up to Ready."""

    def __init__(self, folder, grant, ranks, arguments):
        super().__init__()
        self.folder, self.seen = folder, 0
        with contextlib.ExitStack() as started:  # undone if one fails
            self.ranks = [started.enter_context(PlayedRank(folder, grant, rank, ranks, arguments))
                          for rank in range(ranks)]
            for rank in reversed(self.ranks):  # each waits for the others
                rank.pending = rank.await_message("attach")
            for rank in self.ranks:
                assert rank.await_message("state", state="Ready"), self.logs()
            self.push(started.pop_all())

    def logs(self):
        return "\n".join(path.read_text(errors="replace")
                         for path in sorted(self.folder.glob("rank*/engine.log")))

    def order(self, kind, grant_bytes=0, **more):
        """Tells all ranks, then reads all answers, which must be good."""
        ids = [rank.command(kind, grant_bytes, **more) for rank in self.ranks]
        answers = [rank.await_message("command_done", id=number)
                   for rank, number in zip(self.ranks, ids)]
        for answer in answers:
            assert answer and not answer.get("error"), f"{kind}: {answers}\n{self.logs()}"
        return answers

    def tokens(self):
        """As rank 0 reports them next."""
        report = self.ranks[0].await_message("report")
        assert report, self.logs()
        return report["tokens_done"]

    def await_more(self):
        """A token that was not yet reported; the first one after a command is told at once."""
        while (tokens := self.tokens()) <= self.seen:
            pass
        self.seen = tokens

    def ends(self):
        for rank in self.ranks:
            while rank.next() is not None:
                pass
        return [rank.engine.wait(60) for rank in self.ranks]
