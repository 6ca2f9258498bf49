"""With what: records, maths, model, engine, generation, rollouts, checkpoints. Imports no pipeline, no stages."""
