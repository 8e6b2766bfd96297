"""What starting and stopping the stack can fail of."""

from __future__ import annotations

from cli.errors import CliError


class StackError(CliError):
    """A part of the stack could not be started or stopped; the message names it, and its log's end."""

    code = "stack_failed"


class PortTaken(StackError):
    """Something else listens on a port of ours; the message names the variable that moves it."""

    code = "port_taken"


class AlreadyRunning(StackError):
    """Another supervisor holds this `EVOLVE_HOME`."""

    code = "already_running"


class BackupError(StackError):
    """An archive cannot be written, or is none to restore; the message names the file."""

    code = "backup_failed"


class NotPossibleHere(StackError):
    """This machine lacks what the stack needs; the message says what."""

    code = "not_possible_here"
