"""The engine benchmark: the same requests on the same checkpoints through this engine, transformers and vLLM.

Each contestant is a child process that answers orders of one line of JSON with one line of JSON (`child.py`).
"""
