"""Work done before serving: importing foreign model files."""
