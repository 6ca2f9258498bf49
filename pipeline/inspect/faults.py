"""Which failures of a command that looks at runs are one line; pipeline.faults, which knows more, needs torch."""

from env_adapters.base import EnvironmentFault
from pipeline.config import ConfigError
from pipeline.run_directory import RunError
from runtime.records import RecordError
from runtime.weight_files import ModelFilesError

FAULTS = (RunError, ConfigError, RecordError, EnvironmentFault, ModelFilesError, OSError)
USER_FAULT = 2  # exit code
