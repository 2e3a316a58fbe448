"""The engines. Each runs in a process of its own: `python -m benchmarks.engines REQUEST RESULT`."""
