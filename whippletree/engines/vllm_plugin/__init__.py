"""What runs inside vLLM's own processes: this folder, and only it, is put on vLLM's PYTHONPATH (see engines/vllm.py)."""
