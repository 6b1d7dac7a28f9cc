"""Embeddings of texts, for clients of OpenAI's interface: tokenizers, pooling, routes."""
