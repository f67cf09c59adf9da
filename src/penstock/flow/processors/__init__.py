"""The processors that come with Penstock, by what they work on."""
