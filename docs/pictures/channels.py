"""Channels: each has every message, and shares them among its consumers."""

from __future__ import annotations

from drawing import Picture


def draw() -> Picture:
    """Return the picture."""
    p = Picture(
        760,
        300,
        "Channels of a topic",
        "Each channel of a topic gets every message. Consumers of one channel share its messages. A"
        " message that fails too often moves to a dead-letter topic.",
    )
    topic = p.box(20, 110, 130, 60, "Topic\nmessages 1 2 3 4", "store")
    mail = p.box(230, 50, 150, 60, "Channel mail\n1 2 3 4", "process")
    archive = p.box(230, 175, 150, 60, "Channel archive\n1 2 3 4", "process")
    one = p.box(470, 30, 130, 40, "Consumer: 1 3", "user")
    two = p.box(470, 90, 130, 40, "Consumer: 2 4", "user")
    three = p.box(470, 185, 130, 40, "Consumer: 1 2 3 4", "user", small=True)
    dead = p.box(230, 250, 150, 36, "clicks.dead-letter", "bad", small=True)
    p.arrow(topic.side("right", 0.3), mail.side("left"), via=((190, 128), (190, 80)))
    p.arrow(topic.side("right", 0.7), archive.side("left"), via=((190, 152), (190, 205)))
    p.arrow(mail.side("right", 0.3), one.side("left"), via=((425, 68), (425, 50)))
    p.arrow(mail.side("right", 0.7), two.side("left"), via=((425, 92), (425, 110)))
    p.arrow(archive.side("right"), three.side("left"))
    p.arrow(archive.side("bottom"), dead.side("top"))
    p.text(395, 268, "a message that was tried too often", faint=True)
    p.text(615, 50, "FIN: done", faint=True)
    p.text(615, 110, "REQ: again later", faint=True)
    return p
