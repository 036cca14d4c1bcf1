"""`python -m rooflinekit`."""

from rooflinekit.cli import main

if __name__ == "__main__":
    main()
