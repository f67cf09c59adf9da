"""What a segment is, which segments are visible, and where their files lie."""
