"""From a registered model to a variant that is proven good enough and measured faster.

Resolve, load, export, check the graph, run the recipes, judge each variant, choose,
seal a bundle, publish. Torch, onnx and onnxruntime are imported inside the functions
that need them.
"""
