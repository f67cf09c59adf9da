"""The parts of one disk queue; `penstock.storage.diskqueue` combines them."""
