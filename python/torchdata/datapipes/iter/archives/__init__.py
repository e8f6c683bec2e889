"""Archives and compressed files."""

# Pickles from the time when this folder was a module refer to these names.
from torchdata.datapipes.iter.archives.tar import TarArchiveLoader
from torchdata.datapipes.iter.archives.zip import ZipArchiveLoader

__all__ = ["TarArchiveLoader", "ZipArchiveLoader"]
