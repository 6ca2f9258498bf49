"""ALFWorld in text over the real TextWorld engine, with real games where there are any and generated ones else.

Nothing here imports textworld or alfworld until an engine slot is made or games are prepared.
"""

from env_adapters.alfworld.adapter import AlfworldAdapter, AlfworldOptions

__all__ = ["AlfworldAdapter", "AlfworldOptions"]
