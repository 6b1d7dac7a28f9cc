"""Models in 8 bits: quantised by onnxruntime's tools, then compared with the model in floats by a runtime of ours.

onnxruntime is an extra, ``pip install 'aspen-mp[quantize]'``, and is imported when a model is quantised.
"""
