"""One router a noun. Their paths use the convertors of `api.segments`, registered here first."""

import api.segments as segments

__all__ = ["segments"]
