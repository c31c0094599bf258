"""Instructions of the native engine on Arm, counted in emulation."""
