"""The processes of one host: their folder, their launcher, and `penstock up`, which is both."""
