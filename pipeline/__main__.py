"""`python -m pipeline ...`: what `bash run.sh` calls."""

import signal

signal.signal(signal.SIGINT, signal.SIG_DFL)  # until ranks run there is nothing to finish: Ctrl-C ends it silently

from pipeline.signals import end_with_launcher  # noqa: E402

end_with_launcher()  # of a comparison, where there is one

from pipeline.launch import main  # noqa: E402 - the imports take seconds

main()
