"""Operations by which users move the committed offsets of a supervisor."""
