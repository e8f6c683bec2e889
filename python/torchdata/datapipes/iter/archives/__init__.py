"""Archives and compressed files."""

# Older pickles refer to the classes by the name of this module.
from torchdata.datapipes.iter.archives.tar import TarArchiveLoader
from torchdata.datapipes.iter.archives.zip import ZipArchiveLoader

__all__ = ["TarArchiveLoader", "ZipArchiveLoader"]
