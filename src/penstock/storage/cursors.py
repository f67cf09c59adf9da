"""Named positions of readers in a disk queue, kept in small checksummed files.

Owns: the cursor files ``<name>.cursor`` of a queue's folder and the positions in memory. Does not
own: when they are saved (the queue's syncer) nor what retention makes of them.

Invariants:

- A saved position is never above what is durable in the log files, so a power loss cannot leave a
  cursor beyond the end that would later skip new messages.
- A cursor file is only a position: when it is missing, cut or garbage, the log files still say
  everything else. An unreadable one is kept aside as ``<name>.cursor.bad`` and counted.

    file    byte  0  8  magic "PNSTCURS"
            byte  8  4  format number (1)
            byte 12  4  crc32c of everything but these four bytes
            byte 16  8  position (offset of the next message)
"""
