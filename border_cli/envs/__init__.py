"""Making gymnasium environments and describing their spaces."""
