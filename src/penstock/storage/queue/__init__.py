"""The parts of one disk queue; `penstock.storage.diskqueue` puts them together."""
