"""The native engine of qmaps; use it through qmaps."""

from collections.abc import Sequence

class Codebook:
    def __init__(
        self,
        values: Sequence[float],
        limits: Sequence[float],
        below: Sequence[float],
        bits: int,
        brief: bool = False,
    ) -> None: ...
    @property
    def in_log(self) -> bool: ...
    @in_log.setter
    def in_log(self, arg: bool, /) -> None: ...
    @property
    def bend(self) -> float: ...
    @bend.setter
    def bend(self, arg: float, /) -> None: ...
    def decode_shuffles(self) -> int:
        """
        Permutes and packs of registers that decoding 64 codes takes; 0 where it takes others.
        """

    def encode_shuffles(self, stochastic: bool) -> int:
        """The same of encoding 64 elements."""

class Geometry:
    def __init__(
        self,
        parts: Sequence[tuple[int, int, int, int, int]],
        log: bool,
        arrays: int,
        quantile: float = 0.0,
        ratio: float = 0.0,
    ) -> None: ...

def quantize(
    arg0: Codebook,
    arg1: Geometry,
    arg2: int,
    arg3: int,
    arg4: int,
    arg5: int,
    arg6: Sequence[int],
    arg7: tuple[int, int, int, int, int, int] | None,
    arg8: bool,
    arg9: bool,
    arg10: bool,
    arg11: int,
    /,
) -> int:
    """
    Encode a tensor; returns 1 if it saw NaN or infinity, plus 2 if a refused negative.
    """

def dequantize(
    arg0: Codebook,
    arg1: Geometry,
    arg2: int,
    arg3: Sequence[int],
    arg4: int,
    arg5: int,
    arg6: int,
    arg7: int,
    /,
) -> None:
    """Decode a tensor."""

torch_functions: list = ...

def use_torch(arg0: Sequence[int], arg1: Sequence[type], /) -> None:
    """
    Set the addresses of `torch_functions`, and torch's own classes; call it first.
    """

def tensor_info(arg: Sequence[int], /) -> tuple:
    """Addresses and attributes of tensors with these `_cdata`."""

def plain_address(arg: object, /) -> int:
    """
    Address of a tensor that is plain, contiguous and not empty; 0 for most others.
    """

class WatchedTensors:
    def __init__(self, arg: Sequence[int], /) -> None: ...
    def unchanged(self) -> bool: ...

def measure(
    arg0: Codebook,
    arg1: Geometry,
    arg2: int,
    arg3: int,
    arg4: int,
    arg5: int,
    arg6: Sequence[int],
    arg7: tuple[int, int, int, int, int, int] | None,
    arg8: bool,
    arg9: int,
    arg10: int,
    /,
) -> tuple[int, float, float, float, float, float, float, int, int]:
    """
    Encode and sum up errors; packed = 0 drops the codes. Returns flags and ErrorSums.
    """

class UpdateErrors:
    def __init__(self) -> None: ...
    def clear(self) -> None: ...
    def add(
        self,
        arg0: int,
        arg1: int,
        arg2: tuple[Codebook, Geometry, int, Sequence[int]],
        arg3: tuple[Codebook, Geometry, int, Sequence[int]],
        arg4: float,
        arg5: int,
        arg6: int,
        /,
    ) -> None: ...
    def summary(
        self, arg0: Sequence[float], arg1: int, /
    ) -> tuple[int, int, float, list[float], int, float, list[float]]:
        """
        Ranks are those of the levels, then the largest; none without elements.
        """

def add_update_grid(
    arg0: int,
    arg1: tuple[Codebook, Geometry, int, Sequence[int]],
    arg2: tuple[Codebook, Geometry, int, Sequence[int]],
    arg3: float,
    arg4: int,
    arg5: Sequence[int],
    arg6: int,
    /,
) -> None:
    """
    Add counts, absolute and relative errors and elements with u != 0, by pair of codes.
    """

def sort_data(arg0: int, arg1: int, arg2: tuple[int, int, int, int, int], /) -> None: ...
def partition(arg0: int, arg1: int, arg2: int, arg3: int, arg4: int, /) -> list[int]: ...
def refine(
    arg0: tuple[int, int, int, int, int], arg1: int, arg2: int, arg3: int, arg4: float, /
) -> None: ...

class Step:
    def __init__(self) -> None: ...
    def add_parameter(
        self, rule: str, states: str, shape: Sequence[int], p_dtype: int, g_dtype: int
    ) -> None: ...
    def add_rounding(self, arg: tuple[int, int, int, int, int, int], /) -> None: ...
    def add_rounded(self, arg: int, /) -> None: ...
    def add_remainder(self, arg0: int, arg1: int, /) -> None: ...
    def add_parameter_codes(
        self,
        arg0: Codebook,
        arg1: Geometry,
        arg2: int,
        arg3: Sequence[int],
        arg4: tuple[int, int, int, int, int, int] | None,
        /,
    ) -> None: ...
    def add_gradient_codes(
        self, arg0: Codebook, arg1: Geometry, arg2: int, arg3: Sequence[int], /
    ) -> None: ...
    def add_floats(self, arg: int, /) -> None: ...
    def add_quantized(
        self,
        arg0: Codebook,
        arg1: Geometry,
        arg2: int,
        arg3: Sequence[int],
        arg4: tuple[int, int, int, int, int, int] | None,
        /,
    ) -> None: ...
    def add_shared_scales(self, arg: Sequence[int], /) -> None: ...
    def add_factored_floats(self, arg0: int, arg1: int, /) -> None: ...
    def add_factored_quantized(
        self,
        arg0: int,
        arg1: Codebook,
        arg2: Geometry,
        arg3: int,
        arg4: Sequence[int],
        arg5: tuple[int, int, int, int, int, int] | None,
        /,
    ) -> None: ...
    def begin(
        self,
        p: Sequence[int],
        g: Sequence[int],
        scalars: Sequence[Sequence[float]],
        group: Sequence[int],
        steps: Sequence[int],
        threads: int,
    ) -> None: ...
    def finish(self, threads: int) -> None: ...

def order_statistics(
    arg0: int, arg1: int, arg2: int, arg3: int, arg4: int, arg5: int, arg6: int, /
) -> int:
    """The elements of these ranks."""

def add_quantiles(
    arg0: int,
    arg1: int,
    arg2: int,
    arg3: int,
    arg4: int,
    arg5: int,
    arg6: int,
    arg7: int,
    arg8: int,
    /,
) -> int:
    """
    Add the weighted quantiles of stretches of `size` elements to the sums.
    """

def rules() -> list[tuple[str, str, str, str, bool, int]]:
    """
    Every rule that steps take, with what its header declared when this was compiled.
    """

def enumerators() -> list[tuple[str, str, int]]:
    """Enumeration, name and value of the numbers that Python shares."""

def isa() -> str:
    """The instruction set in use; QMAPS_ISA chooses another."""

def isas() -> list[str]:
    """
    Every instruction set that this build and this processor have, best first.
    """

def divisions(count: int) -> None:
    """256 divisions, so many times over: benchmarks take their time."""

def roots(count: int) -> None:
    """256 square roots, so many times over: benchmarks take their time."""

def shuffles(count: int) -> bool:
    """
    256 permutes of registers, so many times over: benchmarks take their time. False where the instruction set in use looks codes up without.
    """

compiler: str
