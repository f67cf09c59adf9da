"""Generators of the reference pages in `docs`: each page is derived from the code.

`make reference` writes the pages, and a test compares them with the code. Each generator is a
module with the function `page`, which returns the page's text; `pages` lists them.
"""
