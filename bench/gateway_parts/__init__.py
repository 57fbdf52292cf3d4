"""The processes of bench/gateway.py: fake engine, bare relay, gateway, load."""
