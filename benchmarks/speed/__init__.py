"""What ``benchmarks/throughput.py`` trains, how, and what it keeps of it."""
