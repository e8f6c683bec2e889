"""Archives and compressed files."""

# These imports are needed to load older pickles, which refer to the classes by this module's name.
from torchdata.datapipes.iter.archives.tar import TarArchiveLoader
from torchdata.datapipes.iter.archives.zip import ZipArchiveLoader

__all__ = ["TarArchiveLoader", "ZipArchiveLoader"]
