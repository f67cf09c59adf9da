"""Builds the wheel of a release: `make wheel`.

`wheel_hook` adds the manual and the bill of materials to a wheel, whichever front end builds it,
and makes its bytes depend on the commit alone. `bill_of_materials` lists what a user installs with
it. This package does not import Penstock, because the wheel is built before Penstock's dependencies
are installed.
"""
