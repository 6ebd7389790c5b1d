"""What runs when: Prefect flows, deployments, local servers and the `garden` command line."""
