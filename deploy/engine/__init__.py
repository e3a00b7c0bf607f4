"""The CPU engine: a small engine, honest inside, whose caches follow the rules of vLLM and of SGLang."""
