"""GNN layers in plain PyTorch over our message-flow graphs."""
