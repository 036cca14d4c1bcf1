"""`python -m rooflinekit`."""

if __name__ == "__main__":
    try:
        from rooflinekit.cli import main

        main()
    except KeyboardInterrupt:  # before `main` can tell it
        import os

        os.write(2, b"rooflinekit: interrupted\n")
        raise SystemExit(130) from None
