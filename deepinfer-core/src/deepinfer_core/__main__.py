"""`python -m deepinfer_core`: the command line, also where scripts are not on the path."""

from deepinfer_core.cli import main

if __name__ == "__main__":
    main()
