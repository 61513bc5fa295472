"""The parts of FlashInfer's generator; `generate.py` beside this folder is the program."""
