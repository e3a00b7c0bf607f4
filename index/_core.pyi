"""The native core (index/core/*.cpp). Bounds are checked there; what cannot be is a ValueError."""

def sha256(message: bytes) -> bytes: ...
def sha256_portable(message: bytes) -> bytes: ...
def has_sha_instructions() -> bool: ...
def prompt_keys(root: bytes, tokens: bytes, block_size: int) -> bytes:
    """The request keys of the whole blocks, joined, 8 bytes each."""

def token_list(body: bytes) -> tuple[bytes, bytes] | None:
    """The ids of the list in the member token_ids or prompt of a JSON object, and the body with [0] in its place."""

class BlockHolders:
    """One pool's storage. Its methods are those of `index/native_holders.py`, by number of worker, group and medium."""

    def __init__(self, block_size: int) -> None: ...
