"""With what: records, maths, model, engine, generation, rollouts, checkpoints. Imports nothing of pipeline or stages."""
