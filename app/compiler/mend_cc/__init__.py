"""mend-cc: adds portable checkpoints to MPI programs."""
