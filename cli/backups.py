"""`evolve backup` and `evolve restore`: an installation as one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.output import hint, say


def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The archive to write: evolve.tar.gz.")],
) -> None:
    """Save the installation of EVOLVE_HOME as one file of mode 0600: records, histories, blobs and keys.

    A running stack is stopped meanwhile and started again as it was. Boxes go on, and are not in the file;
    neither are logs. A file that exists is not overwritten.
    """
    from cli.stack.backup import back_up
    from cli.stack.home import Home

    back_up(Home.from_environment(), file, say)


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An archive that `evolve backup` wrote.")],
) -> None:
    """Put a saved installation in the place of EVOLVE_HOME, which is moved aside; nothing may run.

    The archive is checked as a whole first. Jobs that ran when it was made go on with `evolve up`, and
    their trials begin again where their boxes are gone.
    """
    from cli.stack.home import Home
    from cli.stack.restore import restore as put_in_place

    put_in_place(Home.from_environment(), file, say)
    hint("start it with: evolve up --detach")
