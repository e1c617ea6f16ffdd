"""What the constructions are called. Needs no torch: the command line's help shows these."""

PAPER = ("mlm", "mrf", "mrf-l", "hcb", "ag")  # those that the paper compares
BESIDE = ("chain-ab", "chain-ba", "chain-mean", "chain-geo", "gibbs")  # those it leaves out
METHODS = (*PAPER, *BESIDE)
