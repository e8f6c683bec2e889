"""Seeds for everything random in a pipeline: `SeedGenerator`, and a function that shares a seed among ranks."""

from torchdata._publishing import publish
from torchdata.dataloader2.random.distributed import dist_share_seed
from torchdata.dataloader2.random.seed_generator import SeedGenerator

__all__ = ["SeedGenerator", "dist_share_seed"]

publish(globals())
