"""The governor: which compiler runs when, so that the build uses the machine and is never killed for memory.

`limits` says how much there is, `ledger` what a unit needs, `scheduler` which unit goes next; `broker` asks it
for the launchers of `client`, which stand before the compilers; `session` is what a build uses of all this.
Kept free of imports, because each launcher loads this package.
"""
