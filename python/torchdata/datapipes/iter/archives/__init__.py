"""Archives and compressed files."""

# Pickles made when this folder was a module name them here.
from torchdata.datapipes.iter.archives.tar import TarArchiveLoader, ZipArchiveLoader

__all__ = ["TarArchiveLoader", "ZipArchiveLoader"]
