"""The papers: their schedulers simulated, and what each prints beside what we get, one file per policy and per paper."""
