"""Objects that torch's collectives carry as pickles: none is unpickled that was not sent by a rank of this run.

A stranger that takes the place of a rank while gloo connects could send a pickle that runs code.
"""

import hmac
import pickle
from typing import BinaryIO

from torch.distributed import distributed_c10d

from recycle.control.membership.messages import derive_key
from recycle.megatron.shared.patching import replace
from recycle.runtime.errors import RunError

_HASH, _SIZE = "sha256", 32


def seal_objects(token: str) -> None:
    """Have torch seal the objects that it sends from now on, and refuse others. All ranks of a run do so.

    Args:
        token: the run's.
    """
    key = derive_key(token, "objects of collectives")

    def seal(content: bytes) -> bytes:
        # The short way takes no 2 GiB.
        return hmac.new(key, content, _HASH).digest()

    class SealedPickler:
        """Writes an object behind a seal of it."""

        def __init__(self, file: BinaryIO) -> None:
            self._file = file

        def dump(self, found: object) -> None:
            content = pickle.dumps(found)
            self._file.write(seal(content) + content)

    class SealedUnpickler:
        """Reads an object whose seal is right."""

        def __init__(self, file: BinaryIO) -> None:
            self._file = file

        def load(self) -> object:
            found, content = self._file.read(_SIZE), self._file.read()
            if not hmac.compare_digest(found, seal(content)):
                raise RunError("an object came in a collective that no rank of this run has sent; it is not read")
            return pickle.loads(content)

    replace(distributed_c10d, "_pickler", SealedPickler)
    replace(distributed_c10d, "_unpickler", SealedUnpickler)
