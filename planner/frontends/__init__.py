"""Front-ends: model files → models that the planner can bind to input shapes."""
