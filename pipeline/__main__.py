"""`python -m pipeline ...`: what `bash run.sh` calls."""

from pipeline.launch import main

main()
