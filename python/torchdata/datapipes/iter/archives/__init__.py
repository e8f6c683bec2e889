"""Archives and compressed files."""

# Pickles made when this folder was a module name them here.
from torchdata.datapipes.iter.archives.tar import TarArchiveLoader
from torchdata.datapipes.iter.archives.zip import ZipArchiveLoader

__all__ = ["TarArchiveLoader", "ZipArchiveLoader"]
