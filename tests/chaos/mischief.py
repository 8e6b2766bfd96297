"""What a provider is to do wrong, planned beforehand on disk; each is done once, and then counted.

| kind | what the provider does |
| --- | --- |
| `create-fails` | says that it cannot make the box |
| `no-capacity` | says 429 |
| `create-late` | makes the box seconds later, also when nobody waits for it any more |
| `create-silent` | makes the box, and the answer is lost |
| `launch-silent` | starts the command, and the answer is lost |
| `box-dies` | loses the box while something runs in it |
| `stream-breaks` | breaks off a read |
| `list-late` | leaves new boxes out of its list |
| `destroy-fails` | does not answer a destroy, which it has not done |
| `destroy-refused` | does not allow a box to be destroyed (403), now and until the storm has looked at it |
| `slow` | takes its time for an answer |
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

KINDS = (
    "create-fails",
    "no-capacity",
    "create-late",
    "create-silent",
    "launch-silent",
    "box-dies",
    "stream-breaks",
    "list-late",
    "destroy-fails",
    "destroy-refused",
    "slow",
)


class Mischief:
    """Planned by the nemesis, taken by the provider in whatever worker process it then is."""

    def __init__(self, root: Path) -> None:
        self._planned = root / "planned"
        self._planned.mkdir(parents=True, exist_ok=True)
        self._done = root / "done"
        self._refused = root / "refused"
        self._refused.mkdir(exist_ok=True)
        self._n_planned = 0

    def plan(self, kind: str, times: int) -> None:
        """The next `times` occasions for it are used."""
        for _ in range(times):
            self._n_planned += 1
            (self._planned / f"{kind}.{self._n_planned:06}").touch()

    def take(self, kind: str) -> bool:
        """Whether it is to be done now; the asker then must do it."""
        for path in self._planned.glob(f"{kind}.*"):
            try:
                path.unlink()
            except FileNotFoundError:
                continue  # another took it
            with self._done.open("a") as log:
                log.write(f"{kind}\n")
            return True
        return False

    def forget_all(self) -> None:
        """What has had no occasion will have none."""
        for path in self._planned.iterdir():
            path.unlink(missing_ok=True)

    def done(self) -> Counter[str]:
        """How often each was done."""
        return Counter(self._done.read_text().split() if self._done.exists() else ())

    def refuses(self, box_id: str) -> bool:
        """Whether that box may not be destroyed, by an earlier word or by one that is planned."""
        if not (self._refused / box_id).exists() and self.take("destroy-refused"):
            (self._refused / box_id).touch()
        return (self._refused / box_id).exists()

    def refused(self) -> set[str]:
        """Boxes that may not be destroyed."""
        return {path.name for path in self._refused.iterdir()}

    def relent(self) -> None:
        """From now on they may."""
        for path in self._refused.iterdir():
            path.unlink()
