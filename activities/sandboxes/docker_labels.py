"""The labels that tie what we make on an engine to its installation, trial and try."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Literal, cast

from activities.sandboxes.base import BoxRole, BoxTag

INSTALLATION = "evolve.installation"
BOX = "evolve.box"
PART = "evolve.part"
POOL = "evolve.pool"

# A box is a container; a pod holds its network; a sweeper lives for one sweep.
Part = Literal["box", "pod", "sweeper", "image", "network"]


def labels_of(tag: BoxTag, part: Part) -> dict[str, str]:
    return {
        INSTALLATION: tag.installation_id,
        BOX: tag.name,
        PART: part,
        "evolve.job": tag.job_id,
        "evolve.trial": tag.trial_id,
        "evolve.attempt_number": str(tag.attempt_number),
        "evolve.step": str(tag.step),
        "evolve.role": tag.role,
        "evolve.fence": str(tag.fence),
    }


def tag_of(labels: Mapping[str, str]) -> BoxTag:
    return BoxTag(
        installation_id=labels[INSTALLATION],
        job_id=labels["evolve.job"],
        trial_id=labels["evolve.trial"],
        attempt_number=int(labels["evolve.attempt_number"]),
        step=int(labels["evolve.step"]),
        role=cast(BoxRole, labels["evolve.role"]),
        fence=int(labels["evolve.fence"]),
    )


def label_filter(labels: Mapping[str, str]) -> str:
    """The engine's `filters` parameter; all of them must match."""
    return json.dumps({"label": [f"{key}={value}" for key, value in labels.items()]})
