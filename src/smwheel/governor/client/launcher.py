"""Start of the launcher: `python3 -I -S launcher.py [--governor DIR] [--unit ID] [--] COMMAND…`.

A file of few lines: the interpreter compiles the file it is given each time, and only what that imports is cached.
"""

import sys

# Three directories up; without pathlib, which would double the start. Appended, so that nothing that lies beside
# this package hides the standard library.
sys.path.append(__file__.rsplit("/", 4)[0])

from smwheel.governor.client.run import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
