import numpy as np
import numpy.typing as npt

def best(corners: npt.NDArray[np.float32], areas: npt.NDArray[np.float32], overlap: float, most: int) -> npt.NDArray[np.int64]:
    """The boxes to keep of [n, 4] (least of two coordinates, then their largest), in the order of their worth, at most `most`. A box is
    kept unless it shares more than `overlap` (at least 0) of their union with one that is kept already. `areas`: [n].

    Boxes are compared in f32, as ONNX's reference does; those far from each other are not."""
