"""Runs both ends of a link in one process, so that tests can compare sent and received items."""

import threading

from torchdata._native import BellBoard, Collector, Link, Sender


class Loopback:
    def __init__(self, budget: int = 64 << 20, ring: int = 1 << 16) -> None:
        bells = BellBoard(2)
        self.link = Link(budget, ring)
        self.sender = Sender([self.link], bells, 1, [0])
        self.collector = Collector([self.link], bells, 0, [1], lambda peer, description: None)
        self.epoch = 0

    def send(self, items):
        self.epoch += 1
        self.collector.start_epoch(self.epoch, 4)
        self.sender.start_epoch(self.epoch)
        failures = []

        def pump():
            try:
                self.sender.pump(iter(items))
            except BaseException as error:
                failures.append(error)
                self.sender.send_error(None)

        thread = threading.Thread(target=pump, daemon=True)
        thread.start()
        yield from self.collector
        thread.join(120)
        assert not thread.is_alive(), "the forwarding thread did not end"
        if failures:
            raise failures[0]

    def one(self, item):
        (received,) = self.send([item])
        return received
