"""The loop of a mailbox."""

from __future__ import annotations

from drawing import Picture


def draw() -> Picture:
    """Return the picture."""
    p = Picture(
        820,
        300,
        "The mailbox loop",
        "Other threads put mail into a mailbox. One thread owns the state: it runs the mail one"
        " after the other. Blocking calls run on lanes, and their results come back as mail.",
    )
    http = p.box(15, 40, 140, 50, "HTTP threads\nrequests of users", "user")
    timers = p.box(15, 110, 140, 50, "Timers\nduties, time limits", "user")
    mailbox = p.box(235, 75, 130, 60, "Mailbox\nfirst in, first out", "data")
    thread = p.box(
        445, 60, 170, 90, "Mailbox thread\nruns one mail at a time,\nowns all state", "process"
    )
    state = p.box(675, 40, 130, 50, "State\nno locks", "store")
    views = p.box(675, 115, 130, 50, "Snapshots\nread by anyone", "store")
    lanes = p.box(445, 215, 170, 60, "Lanes\ndisk, network, database", "process")
    p.arrow(http.side("right"), mailbox.side("left", 0.3), via=((195, 65), (195, 93)))
    p.arrow(timers.side("right"), mailbox.side("left", 0.7), via=((195, 135), (195, 117)))
    p.arrow(mailbox.side("right"), thread.side("left"), "take")
    p.arrow(thread.side("right", 0.3), state.side("left"), via=((645, 87), (645, 65)), both=True)
    p.arrow(thread.side("right", 0.8), views.side("left"), via=((645, 132), (645, 140)))
    p.arrow(thread.side("bottom"), lanes.side("top"), "blocking calls", at=(585, 183))
    p.arrow(lanes.side("left"), mailbox.side("bottom"), "results", via=((300, 245),))
    return p
