"""Process of the gateway for workflows, agents and suggestions."""
