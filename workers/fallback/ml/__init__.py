"""The domain `ai.onnx.ml`, and what its pipelines use of other domains, as numpy calls with onnxruntime's results. Kernels serve what they
can; this is what everything else runs by, and what the kernels are compared with.

`OPERATORS` are classes for `onnx.reference`'s evaluator. Each makes a function of a node's attributes once, when the node is first run. So
an ensemble's lists become arrays a single time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from onnx.reference.op_run import OpRun

from aspen_mp.workers.fallback.ml import categories, columns, text, trees, vectors
from aspen_mp.workers.fallback.ml.attributes import Attributes

DOMAIN: Final = "ai.onnx.ml"
ONNXRUNTIME: Final = "com.microsoft"

Call = Callable[..., Any]
"""Inputs to the output, or a tuple of several."""


class Compiled(OpRun):
    """An operator that is a function of its inputs, made from its attributes."""

    op_domain = DOMAIN
    make: Callable[[Attributes], Call]
    declared: np.dtype[Any] | None = None
    """The type of the first output by the model, where that is known."""
    _call: Call | None = None

    def _load_attributes(self) -> None:
        if any(a.ref_attr_name for a in self.onnx_node.attribute):
            super()._load_attributes()
            return
        self.attributes_names_: set[str] = set()
        self.has_linked_attribute = False
        self.has_subgraph = False

    def _run(self, *inputs: Any, **linked: Any) -> tuple[Any, ...]:
        call = self._call
        if call is None:
            call = self._made(Attributes(self.onnx_node, linked))
            if not linked:
                self._call = call
        found = call(*inputs)
        return found if isinstance(found, tuple) else (found,)

    def _made(self, a: Attributes) -> Call:
        return type(self).make(a)

    def _check_and_fix_outputs(self, res: tuple[Any, ...]) -> tuple[Any, ...]:
        return res


class LabelEncoder(Compiled):
    def _made(self, a: Attributes) -> Call:
        return categories.label_encoder(a, self.run_params["opsets"].get(DOMAIN, 1))


class DictVectorizer(Compiled):
    def _made(self, a: Attributes) -> Call:
        return categories.dict_vectorizer(a, self.declared)


def _operator(name: str, make: Callable[[Attributes], Call], domain: str = DOMAIN) -> type[OpRun]:
    return type(name, (Compiled,), {"op_domain": domain, "make": staticmethod(make)})


_OF_ATTRIBUTES: Final[dict[str, Callable[[Attributes], Call]]] = {
    "ArrayFeatureExtractor": columns.array_feature_extractor,
    "Binarizer": columns.binarizer,
    "CastMap": categories.cast_map,
    "CategoryMapper": categories.category_mapper,
    "FeatureVectorizer": columns.feature_vectorizer,
    "Imputer": columns.imputer,
    "LinearClassifier": vectors.linear_classifier,
    "LinearRegressor": vectors.linear_regressor,
    "Normalizer": columns.normalizer,
    "OneHotEncoder": categories.one_hot_encoder,
    "SVMClassifier": vectors.svm_classifier,
    "SVMRegressor": vectors.svm_regressor,
    "Scaler": columns.scaler,
    "TreeEnsemble": trees.ensemble,
    "TreeEnsembleClassifier": trees.classifier,
    "TreeEnsembleRegressor": trees.regressor,
    "ZipMap": categories.zip_map,
}

OPERATORS: Final[list[type[OpRun]]] = [
    LabelEncoder,
    DictVectorizer,
    *[_operator(name, make) for name, make in _OF_ATTRIBUTES.items()],
    _operator("MurmurHash3", text.murmur_hash3, ONNXRUNTIME),
    _operator("Tokenizer", text.tokenizer, ONNXRUNTIME),
    _operator("StringNormalizer", text.string_normalizer, ""),
    _operator("TfIdfVectorizer", text.tf_idf_vectorizer, ""),
]
