"""Python imports this at its start where the folder is on its path: so a child sees the mutant."""

import importlib.abc
import importlib.machinery
import os
import sys

MODULE, TEXT = "DIBS_MUTANT_MODULE", "DIBS_MUTANT_TEXT"


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname):
        return compile(self.get_data(os.environ[TEXT]), self.path, "exec", dont_inherit=True)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, path, target=None):
        if fullname != os.environ.get(MODULE):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        spec.loader = _Loader(fullname, spec.origin)
        return spec


if MODULE in os.environ:
    sys.meta_path.insert(0, _Finder())
