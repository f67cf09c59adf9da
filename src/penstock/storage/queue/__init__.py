"""The parts of one disk queue; `penstock.storage.queue.disk_queue` combines them."""
