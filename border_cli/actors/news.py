"""Waiting for all actors at once: for what they say, and for their end."""

from __future__ import annotations

import selectors

from border_cli.actors.slot import ActorSlot


class News:
    """The descriptors of every actor that has a process."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def watch(self, slot: ActorSlot) -> None:
        """From now on, of this actor too."""
        for descriptor in slot.descriptors:
            self._selector.register(descriptor, selectors.EVENT_READ, slot)

    def forget(self, slot: ActorSlot) -> None:
        """No more of this actor; call it before its descriptors are closed."""
        for descriptor in slot.descriptors:
            if descriptor in self._selector.get_map():
                self._selector.unregister(descriptor)

    def listen(self, timeout_s: float) -> list[ActorSlot]:
        """Let actors be heard that have said something, waiting no longer than timeout_s; those that may have ended."""
        ending = []
        for key, _ in self._selector.select(timeout_s):
            slot: ActorSlot = key.data
            if not slot.listen():
                ending.append(slot)
                self._selector.unregister(key.fd)  # it would have news for ever
        return ending

    def close(self) -> None:
        """Release the system's own object."""
        self._selector.close()
