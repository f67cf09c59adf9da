"""`python -m penstock` is the command `penstock`."""

from penstock.services.cli import main

if __name__ == "__main__":
    main()
