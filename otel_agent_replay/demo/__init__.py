"""The bundled demo: an agent that fails, a model server that never answers the same twice, and a story."""
