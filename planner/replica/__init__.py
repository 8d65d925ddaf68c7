"""What one replica is: engine settings, slots, memory, price, and the physics no replica beats."""
